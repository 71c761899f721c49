"""The text of a compiled program (HLO), read as computations of instructions.

Only what verification asks for is read: names, types, operands, and the attributes as text. Both
forms are understood that XLA prints for hosts and for accelerators, whose layouts are tiled:
`bf16[512,64]{0,1:T(8,128)(2,1)S(1)}`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from partita.program.ir import TensorType

_HEADER = re.compile(r"(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"\s*(?P<root>ROOT )?%?(?P<name>[\w.\-]+) = (?=\S)")
_OPCODE = re.compile(r"\s*(?P<opcode>[a-z][\w\-]*)\(")
_NAME = re.compile(r"%([\w.\-]+)")
_SHAPE = re.compile(r"([a-z]\w*)\[([\d,]*)\]")
_TARGET = re.compile(r'custom_call_target="([^"]+)"')
_INDEX = re.compile(r"\bindex=(\d+)")
_PARENTHESIS = re.compile(r"[()]")
_CALLED = re.compile(
    r"(?P<role>calls|to_apply|condition|body|true_computation|false_computation|"
    r"branch_computations|called_computations)="
    r"(?:\{(?P<many>[^}]*)\}|%?(?P<one>[\w.\-]+))"
)


@dataclasses.dataclass(frozen=True, slots=True)
class HloInstruction:
    """One instruction: `%name = type opcode(operands), attributes`."""

    name: str
    type: str
    """HLO type as written: `f32[8]{0}`, or `(f32[8]{0}, s32[])`."""
    opcode: str
    text: str
    """Text between the parentheses; the value of a constant."""
    attributes: str
    root: bool

    @property
    def operands(self) -> list[str]:
        """Names of the instructions that it reads."""
        return _NAME.findall(self.text)

    @property
    def arrays(self) -> list[TensorType]:
        """The arrays that it makes, element types as StableHLO names them."""
        return [
            TensorType(tuple(int(d) for d in dims.split(",") if d), element_type(dtype))
            for dtype, dims in _SHAPE.findall(self.type)
        ]

    @property
    def bytes(self) -> int:
        """Bytes of all arrays that it makes."""
        return sum(array.bytes for array in self.arrays)

    @property
    def target(self) -> str:
        """The target of a custom call; empty for other instructions."""
        found = _TARGET.search(self.attributes)
        return found[1] if found else ""

    @property
    def index(self) -> int | None:
        """The place in the tuple that a `get-tuple-element` reads."""
        found = _INDEX.search(self.attributes)
        return int(found[1]) if found else None

    @property
    def called(self) -> list[tuple[str, str]]:
        """The computations that it calls, each with its role: `("body", "region_1.2")`."""
        found = []
        for match in _CALLED.finditer(self.attributes):
            names = (match["many"] or match["one"]).split(",")
            found += [(match["role"], name.strip().removeprefix("%")) for name in names]
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class Computation:
    """A named list of instructions, in the order in which they run."""

    name: str
    instructions: dict[str, HloInstruction]

    @property
    def root(self) -> HloInstruction | None:
        """The instruction whose value it returns."""
        return next((i for i in self.instructions.values() if i.root), None)

    def __iter__(self) -> Iterator[HloInstruction]:
        return iter(self.instructions.values())


@dataclasses.dataclass(frozen=True, slots=True)
class HloModule:
    """A compiled program: its computations by name, and the one that starts."""

    computations: dict[str, Computation]
    entry: str

    def fused(self, instruction: HloInstruction) -> Computation | None:
        """The computation inside of a fusion; None for other instructions."""
        if instruction.opcode != "fusion":
            return None
        return self.computations.get(instruction.called[0][1])


def parse(text: str) -> HloModule:
    """Reads the text that `compiled.as_text()` gives.

    Instructions before any computation, as of a snippet, belong to an entry without a name.
    """
    computations: dict[str, Computation] = {}
    entry, now = "", Computation("", {})
    for line in text.splitlines():
        header = None if line[:1].isspace() or not line.endswith("{") else _HEADER.match(line)
        if header:
            now = computations[header["name"]] = Computation(header["name"], {})
            entry = header["name"] if header["entry"] else entry
            continue
        instruction = _instruction(line)
        if instruction is not None:
            computations.setdefault(now.name, now).instructions[instruction.name] = instruction
    return HloModule(computations, entry)


def _instruction(line: str) -> HloInstruction | None:
    match = _INSTRUCTION.match(line)
    if match is None:
        return None
    start = match.end()
    end = _closing(line, start) if line[start] == "(" else line.find(" ", start)
    opcode = _OPCODE.match(line, end) if end > 0 else None
    if opcode is None:
        return None
    close = _closing(line, opcode.end() - 1)
    return HloInstruction(
        match["name"],
        line[start:end],
        opcode["opcode"],
        line[opcode.end() : close - 1],
        line[close:],
        bool(match["root"]),
    )


def element_type(dtype: str) -> str:
    """StableHLO's name of an element type, from HLO's."""
    name = {"pred": "i1"}.get(dtype, dtype)
    name = f"i{name[1:]}" if re.fullmatch(r"[su]\d+", name) else name
    if name.startswith("c") and name[1:].isdigit():
        name = f"complex<f{int(name[1:]) // 2}>"
    return name


def _closing(line: str, start: int) -> int:
    """Returns the position after the parenthesis that closes the one at `start`; 0 if none does."""
    depth = 0
    for match in _PARENTHESIS.finditer(line, start):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.end()
    return 0
