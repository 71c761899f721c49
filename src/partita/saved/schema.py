"""The form of a plan file: every field, its type, and what JSON it is. `docs/plan-file.md` says it.

A change that an older partita would misread raises `FORMAT`, and gets a migration in `migrate`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from partita.decisions.layouts import from_runs, runs
from partita.errors import FileError
from partita.saved.migrate import migrated
from partita.tactics import Blocked

FORMAT = 5

WIDTH = 110
"""Columns of a line of the file, where what it holds can be broken."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Time = Annotated[float, msgspec.Meta(ge=0)]
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Entry = str | tuple[str, ...] | None
"""Entry of a `PartitionSpec`."""


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An object of the file. Its fields are all there is to it."""


class Version(_Table, frozen=True):
    """The one field that files of all formats have."""

    partita_plan: Annotated[int, msgspec.Meta(ge=1, le=2**31)]


class Tensor(_Table, frozen=True):
    """An argument or a result of the program."""

    name: str
    type: str
    sharding: tuple[Entry, ...]


class ClosedOver(_Table, frozen=True):
    """A closed-over constant that has become an argument."""

    bytes: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    digest: Digest


class Lines(_Table, frozen=True):
    """Lines of text, each different one once."""

    kinds: tuple[str, ...]
    """The different ones."""
    order: str
    """The number of each line among them, as runs."""

    def listed(self, count: int, what: str) -> tuple[str, ...]:
        """Returns so many lines; raises `FileError`, which says what they are of, for others."""
        codes = from_runs(self.order, count, len(self.kinds), what)
        return tuple("" if code is None else self.kinds[code] for code in codes)


def in_runs(lines: Iterable[str]) -> tuple[tuple[str, ...], str]:
    """Returns the `kinds` and the `order` of lines."""
    numbers: dict[str, int] = {}
    order = runs(numbers.setdefault(line, len(numbers)) for line in lines)
    return tuple(numbers), order


class Text(Lines, frozen=True):
    """The lines of the program, to show where another one differs."""

    checks: str


class OperationList(Lines, frozen=True):
    """The operations of the program, in short, to find them again in one that has changed.

    A line is what an operation is, and the ranks of its operands and of its results. `order` is
    empty if they are not known.
    """


class SpecsTable(_Table, frozen=True, omit_defaults=True):
    """The shardings that `simulate` was given, by the names of arguments and results: for each
    dimension, the names of its axes."""

    arguments: dict[str, tuple[tuple[str, ...], ...]] = {}
    results: dict[str, tuple[tuple[str, ...], ...]] = {}


class ProgramTable(_Table, frozen=True, omit_defaults=True):
    """The program that the plan is for."""

    name: str
    fingerprint: Digest
    donate_argnums: tuple[Count, ...]
    closed_over: tuple[ClosedOver, ...]
    arguments: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    text: Text
    operations: OperationList
    donate_argnames: tuple[str, ...] = ()
    specs: SpecsTable | None = None
    """Shardings given to `simulate`: the program is partitioned as XLA does from them."""


class TrafficTable(_Table, frozen=True):
    """All collectives of one kind over the same axes."""

    kind: str
    axes: tuple[str, ...]
    count: Count
    bytes: Count
    seconds: Time


class OffloadedTable(_Table, frozen=True):
    """Traffic to the memory of the host and back."""

    count: Count
    bytes: Count
    seconds: Time


NOTHING = OffloadedTable(0, 0, 0.0)


class EstimateTable(_Table, frozen=True, omit_defaults=True):
    """An `Estimate`."""

    compute_time: Time
    exposed_time: Time
    link_times: Annotated[tuple[Time, ...], msgspec.Meta(min_length=1)]
    peak_memory: Count
    argument_memory: Count
    constant_memory: Count
    capacity: Count
    regather: bool
    traffic: tuple[TrafficTable, ...]
    host_memory: Count = 0
    offloaded: OffloadedTable = NOTHING


class RefusalTable(_Table, frozen=True):
    """A `Refusal`."""

    what: str
    reason: str
    instead: str
    axis: str
    seeds: tuple[tuple[Count, Count], ...]


class AnchorRow(_Table, frozen=True, omit_defaults=True):
    """Places at which a color or a role is found; its number holds for this program only."""

    nodes: tuple[tuple[Literal["op", "result", "value"], Count, Count], ...]
    """Operations with a factor, results by their place among all, and other values, each with a
    dimension that has it."""
    color: Count | None = None
    role: Count | None = None


class CollectiveRow(_Table, frozen=True):
    """All collectives of one kind, over the same axes, at one line of the user's code."""

    kind: str
    axes: tuple[str, ...]
    source: str
    """The line, empty where it is not known."""
    value: str
    """Value that the first of them moves."""
    count: Count
    bytes: Count


class TacticTable(_Table, frozen=True, omit_defaults=True):
    """Decisions of a tactic, and its report; see `TacticReport`."""

    name: str
    decided: tuple[dict[str, Any], ...]
    """Its decisions, see `partita.decisions`; axes by name."""
    memory: Count | None = None
    """Bytes per device that the plan may use from there on."""
    decisions: tuple[str, ...] = ()
    refused: tuple[RefusalTable, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    conflicts: tuple[str, ...] = ()
    resolved: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    reached: dict[str, Any] | None = None
    """The layouts that it led to, as a decision; of files of earlier formats."""


class PlanTable(_Table, frozen=True):
    """A plan file."""

    partita_plan: Annotated[int, msgspec.Meta(ge=1, le=2**31)]
    checksum: Digest
    partita: str
    jax: str
    mesh: dict[str, Annotated[int, msgspec.Meta(ge=1, le=2**31)]]
    networks: dict[str, tuple[str, ...]]
    hardware: str
    capacity: Count
    program: ProgramTable
    estimate: EstimateTable
    collectives: tuple[CollectiveRow, ...]
    layouts: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{64})?$")]
    """SHA-256 of all layouts; empty in files of earlier formats."""
    anchors: tuple[AnchorRow, ...]
    history: tuple[TacticTable, ...]
    gathered_again: tuple[dict[str, Any], ...] | None
    """What is gathered again, decided or chosen for lack of memory, as decisions; of files of
    earlier formats None, for which it is chosen again."""


UNSUMMED = "0" * 64
"""The checksum while there is none."""


def encode(table: PlanTable) -> bytes:
    """A plan file as bytes, with its checksum.

    Raises:
      msgspec.ValidationError: it would not be read back.
    """
    # As it will be read: whole numbers as floats where those are expected, and so on.
    table = msgspec.json.decode(msgspec.json.encode(table), type=PlanTable)
    summed = msgspec.structs.replace(table, checksum=_checksum(table))
    return ("\n".join(_lines(msgspec.to_builtins(summed))) + "\n").encode()


def decode(data: bytes, path: str | Path) -> PlanTable:
    """Reads a plan file, and checks that it is complete and of a form that is known.

    Files of earlier formats come as the present one. What it says of a program is not checked.

    Raises:
      FileError: it is not.
    """
    what = f"{str(path)!r} is not a plan file that can be read"
    try:
        raw = msgspec.json.decode(data)
        version = msgspec.convert(_known(raw), Version).partita_plan
        if version > FORMAT:
            raise FileError(
                f"the plan file {str(path)!r} is of format {version}, and this partita reads "
                f"formats up to {FORMAT}; use a newer partita"
            )
        earlier = version < FORMAT
        if earlier and _checksum_of_earlier(raw) != raw.get("checksum"):
            raise FileError(_damaged(what))
        table = msgspec.convert(migrated(raw, version), PlanTable, strict=True)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FileError(f"{what}: {str(error).replace('`$.', '`')}") from None
    except RecursionError:
        raise FileError(f"{what}: it is nested too deeply") from None
    if earlier:
        return msgspec.structs.replace(table, checksum=_checksum(table))
    if _checksum(table) != table.checksum:
        raise FileError(_damaged(what))
    return table


def _damaged(what: str) -> str:
    return (
        f"{what}: its checksum is that of other contents; it was damaged or edited, so save "
        "the plan again"
    )


def _checksum_of_earlier(raw: dict[str, Any]) -> str:
    """The same of a file of an earlier format, as long as its fields are in their order."""
    return hashlib.sha256(msgspec.json.encode({**raw, "checksum": UNSUMMED})).hexdigest()


def _known(raw: Any) -> Any:
    """The fields that tell the version; a file without them is no plan file."""
    if not isinstance(raw, dict) or "partita_plan" not in raw:
        raise msgspec.ValidationError("expected an object with a field `partita_plan`")
    return {"partita_plan": raw["partita_plan"]}


def _checksum(table: PlanTable) -> str:
    """SHA-256 of the contents, however they are laid out as text."""
    unsummed = msgspec.structs.replace(table, checksum=UNSUMMED)
    return hashlib.sha256(msgspec.json.encode(unsummed)).hexdigest()


def _lines(value: Any, prefix: str = "", indent: str = "", suffix: str = "") -> list[str]:
    """JSON in which what fits on a line is on one."""
    flat = msgspec.json.encode(value).decode()
    line = f"{indent}{prefix}{flat}{suffix}"
    if len(line) <= WIDTH or not isinstance(value, dict | list | tuple) or not value:
        return [line]
    if isinstance(value, dict):
        items = [(msgspec.json.encode(key).decode() + ": ", item) for key, item in value.items()]
    else:
        items = [("", item) for item in value]
    opening, closing = ("{", "}") if isinstance(value, dict) else ("[", "]")
    lines = [f"{indent}{prefix}{opening}"]
    for number, (key, item) in enumerate(items):
        lines += _lines(item, key, indent + " ", "," if number + 1 < len(items) else "")
    return [*lines, f"{indent}{closing}{suffix}"]
