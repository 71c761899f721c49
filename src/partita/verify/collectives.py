"""Collectives of a compiled program, read from its text.

An accelerator's collective may be started and ended by two instructions, with other work between.
It is then written out in the computations of both, and counts where it starts. A combined
collective counts once for each of its operands.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from partita.program.collectives import (
    ALL_REDUCE,
    COLLECTIVES,
    REDUCE_SCATTER,
    CollectiveKind,
    HloForm,
)
from partita.verify.device_groups import DeviceGroups, chains_of, groups_of
from partita.verify.hlo import Computation, HloInstruction, HloModule, parse
from partita.verify.loops import Executions, executions

_STARTS = "AsyncCollectiveStart"
_FORWARDING = (
    *("bitcast", "convert", "copy", "copy-start", "copy-done", "reshape", "transpose"),
    *(f"{opcode}-done" for opcode in ALL_REDUCE.hlo.opcodes),
)
"""Opcodes that forward the same tensor."""
_CUT_OUT = (*_FORWARDING, "get-tuple-element", "slice", "slice-start", "slice-done")
"""Opcodes that forward a tensor or a part of it."""
_JOINED = "ConcatBitcast"
"""Custom call that joins separately copied parts into one tensor."""


@dataclasses.dataclass(frozen=True, order=True)
class HloCollective:
    """A collective, predicted or compiled: kind, payload in bytes per device, and device groups."""

    kind: str
    bytes: int
    groups: DeviceGroups


@dataclasses.dataclass(frozen=True)
class Found:
    """A collective of a compiled program."""

    collective: HloCollective
    times: int
    """Number of executions per step."""
    asynchronous: bool
    """True if other work can run between its start and its end."""
    cut: bool = False
    """True for a sum of which every device keeps only a shard."""
    padded: bool = False
    """True for a reduce_scatter whose shards the compiler has padded; `bytes` excludes the
    padding."""
    patch: bool = False
    """Moves what, because of such padding, has come to another device than it belongs to."""
    instruction: str = ""
    """Computation and name of the instruction; the same for all that the compiler combined."""


def compiled_collectives(text: str) -> list[HloCollective]:
    """The collectives in the text of a compiled program, as they stand there: loops count once.

    XLA may combine several into one instruction with a tuple of operands; each operand counts.
    """
    return [found.collective for found in found_collectives(parse(text))]


def found_collectives(module: HloModule, runs: Executions | None = None) -> list[Found]:
    """The collectives of a compiled program, in the order of its text.

    Args:
      module: the program.
      runs: how often its computations run, if that has been found before.

    Raises:
      VerifyError: the text has device groups in a form that is not known.
    """
    return list(Reader(module, runs or executions(module)).found())


class Reader:
    """Reads the collectives of one compiled program."""

    def __init__(self, module: HloModule, runs: Executions) -> None:
        self._module = module
        self._runs = runs
        self._readers: dict[str, dict[str, list[HloInstruction]]] = {}
        self._opcodes = opcodes()

    def found(self) -> Iterator[Found]:
        """Every collective that runs, in the order of the text."""
        runs, computations = self._runs, self._module.computations
        started = {
            channel
            for name in runs.fused
            for i, channel in self._of_computation(computations[name])
            if _has_call(computations[name], _STARTS)
        }
        for name, computation in computations.items():
            times, inside = runs.times.get(name, 0), runs.fused.get(name, 0)
            if not times and not inside:
                continue
            starts = _has_call(computation, _STARTS)
            for instruction, channel in self._of_computation(computation):
                if inside and not starts and channel in started:
                    continue  # the same one, in progress
                asynchronous = starts or instruction.opcode.endswith("-start")
                for each in self._read(computation, instruction, bool(inside)):
                    yield dataclasses.replace(
                        each,
                        times=times or inside,
                        asynchronous=asynchronous,
                        instruction=f"{name}/{instruction.name}",
                    )

    def collectives(
        self, computation: Computation, instruction: HloInstruction
    ) -> list[HloCollective]:
        """Returns the collectives of an instruction, or of the one that it starts; empty if it is
        none."""
        if instruction.opcode == "async-start":
            computation = self._module.computations[instruction.called[0][1]]
            inside = computation.root
            return [] if inside is None else self.collectives(computation, inside)
        if instruction.opcode not in self._opcodes:
            return []
        return [each.collective for each in self._read(computation, instruction, False)]

    def _read(
        self, computation: Computation, instruction: HloInstruction, fused: bool
    ) -> Iterator[Found]:
        """The collectives of an instruction, one for each of its operands."""
        kind, line = self._opcodes[instruction.opcode], instruction.attributes
        sizes = self._put_together(computation, instruction) or _sizes(instruction, kind.hlo)
        if kind.hlo.pairs:
            patch = self._is_patch(computation, instruction)
            for size in sizes:
                yield Found(HloCollective(kind.name, size, chains_of(line)), 1, False, patch=patch)
            return
        groups = groups_of(line)
        if kind.hlo.tuple_of_shards:
            sizes = [sum(sizes)]
        for number, size in enumerate(sizes):
            if kind is not ALL_REDUCE:
                size = kind.payload_of_result(size, len(groups[0]) if groups else 1)
                yield Found(HloCollective(kind.name, size, groups), 1, False)
                continue
            cut = self._is_cut(computation, instruction.name, number if len(sizes) > 1 else None)
            if not (cut and fused):
                yield Found(HloCollective(kind.name, size, groups), 1, False, cut=cut)
                continue
            padded = _before_padding(computation, instruction.operands[number])
            collective = HloCollective(
                REDUCE_SCATTER.name, size if padded is None else padded, groups
            )
            yield Found(collective, 1, False, padded=padded is not None)

    def _put_together(self, computation: Computation, instruction: HloInstruction) -> list[int]:
        """Returns bytes of the vectors that a GPU's compiler has concatenated to sum them at once.

        Such a sum is not an operation of the program, and has no `op_name`.
        """
        if not instruction.opcode.startswith(ALL_REDUCE.hlo.opcodes):
            return []
        if len(instruction.operands) != 1 or "op_name=" in instruction.attributes:
            return []
        return self._pieces(computation, instruction.operands[0])

    def _pieces(self, computation: Computation, name: str) -> list[int]:
        """Returns bytes of the vectors that a vector is concatenated from, or of itself if it is
        not."""
        around, made = computation, computation.instructions.get(name)
        if made is None:
            return []
        place, fusion = 0, made
        if made.opcode == "get-tuple-element":
            place = made.index or 0
            fusion = computation.instructions.get(made.operands[0], made)
        inner_of = self._module.fused(fusion)
        if inner_of is not None:
            computation, root = inner_of, inner_of.root
            if root is not None and root.opcode == "tuple":
                root = computation.instructions.get(root.operands[place])
            made = root or made
        joined = made.opcode == "concatenate" and len(made.arrays[0].shape) == 1
        if not joined or "op_name=" in made.attributes:
            return _bytes(around.instructions[name])
        found: list[int] = []
        for part in made.operands:
            inner = computation.instructions.get(part)
            if inner is not None and inner.opcode == "parameter" and fusion.opcode == "fusion":
                found += self._pieces(around, fusion.operands[int(inner.text)])
            else:
                found += self._pieces(computation, part)
        return found

    def _of_computation(self, computation: Computation) -> Iterator[tuple[HloInstruction, str]]:
        """The collectives in a computation, each with its channel."""
        for instruction in computation:
            if instruction.opcode in self._opcodes:
                channel = re.search(r"channel_id=(\d+)", instruction.attributes)
                yield instruction, channel[1] if channel else instruction.name

    def _is_cut(self, computation: Computation, name: str, place: int | None = None) -> bool:
        """Returns whether all readers of a tensor read only a shard of it, chosen by the device's
        number.

        Args:
          computation: where it is made.
          name: of the instruction that makes it.
          place: which element of a tuple it is.
        """
        readers = self._readers_of(computation, name)
        if place is not None:
            readers = [i for i in readers if i.index == place]
        waiting = [(computation, name, readers)]
        while waiting:
            within, read, readers = waiting.pop()
            for reader in readers:
                passed = self._passed_on(within, read, reader)
                if passed is None:
                    return False
                waiting += ((at, each, self._readers_of(at, each)) for at, each in passed)
            if not readers:
                return False
        return True

    def _passed_on(
        self, computation: Computation, name: str, reader: HloInstruction
    ) -> list[tuple[Computation, str]] | None:
        """Returns the values that a reader forwards a tensor as, each with its computation. The
        list is empty if it reads a slice; None means that it reads the whole tensor."""
        if reader.opcode == "dynamic-slice":
            return [] if reader.operands[0] == name else None
        if reader.opcode in _FORWARDING or reader.opcode == "get-tuple-element":
            return [(computation, reader.name)]
        inner = self._module.fused(reader)
        if inner is None:
            return None
        places = [str(n) for n, operand in enumerate(reader.operands) if operand == name]
        parameters = (i for i in inner if i.opcode == "parameter" and i.text in places)
        return [(inner, parameter.name) for parameter in parameters]

    def _readers_of(self, computation: Computation, name: str) -> list[HloInstruction]:
        known = self._readers.get(computation.name)
        if known is None:
            known = self._readers[computation.name] = {}
            for instruction in computation:
                for operand in dict.fromkeys(instruction.operands):
                    known.setdefault(operand, []).append(instruction)
        return known.get(name, [])

    def _is_patch(self, computation: Computation, permute: HloInstruction) -> bool:
        """Returns whether a permutation moves a part of the result of a padded reduce_scatter."""
        # Text before it is compiled names operands otherwise.
        return bool(permute.operands) and self._is_padded(computation, permute.operands[0])

    def _is_padded(self, computation: Computation, name: str) -> bool:
        """Returns whether a tensor is the result of a padded reduce_scatter, or a slice of it."""
        waiting = [name]
        while waiting:
            source = computation.instructions.get(waiting.pop())
            if source is not None and source.target == _JOINED:
                waiting += source.operands
            elif source is not None and source.opcode in _CUT_OUT:
                waiting.append(source.operands[0])
            elif source is None or not self._scatters_padded(source):
                return False
        return True

    def _scatters_padded(self, source: HloInstruction) -> bool:
        """Returns whether an instruction is a fusion that contains a padded reduce_scatter."""
        inner = self._module.fused(source)
        return inner is not None and any(
            each.padded
            for i, _ in self._of_computation(inner)
            for each in self._read(inner, i, True)
        )


def _has_call(computation: Computation, target: str) -> bool:
    return any(i.opcode == "custom-call" and i.target == target for i in computation)


def opcodes() -> dict[str, CollectiveKind]:
    """The opcodes of instructions that are, or start, a collective, each with its kind."""
    return {
        f"{opcode}{suffix}": kind
        for kind in COLLECTIVES.values()
        for opcode in kind.hlo.opcodes
        for suffix in ("", "-start")
    }


def _sizes(instruction: HloInstruction, form: HloForm) -> list[int]:
    """Returns bytes of a collective's result, for each of its operands."""
    sizes = _bytes(instruction)
    if form.start_holds_operands and instruction.opcode.endswith("-start"):
        sizes = sizes[: 2 * len(instruction.operands)]  # context of the transfer comes last
        sizes = sizes[len(sizes) // 2 :]  # what goes in stands before what comes out
    return sizes


def _before_padding(computation: Computation, name: str) -> int | None:
    """Returns bytes of the operand of a collective before padding; None if it is not padded."""
    pad = computation.instructions.get(name)
    if pad is None or pad.opcode != "pad":
        return None
    source = computation.instructions.get(pad.operands[0])
    return None if source is None else source.bytes


def _bytes(instruction: HloInstruction) -> list[int]:
    """Bytes of every array that an instruction makes."""
    return [array.bytes for array in instruction.arrays]
