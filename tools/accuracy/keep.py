"""Compiled programs, kept in a folder: what has been compiled once is not compiled again.

A prediction changes with every figure of the cost model, a compiled program only with the plan. So
they are kept by what is given to the compiler: the program that JAX lowers, the topology, the
options and the compiler's version.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
from importlib import metadata
from pathlib import Path

import msgspec

from partita.errors import FileError
from partita.plan import Plan
from partita.verify import Compiled, OutOfMemoryError
from partita.verify.backends import Backend
from partita.verify.compile import compiler_options


@dataclasses.dataclass(frozen=True)
class How:
    """What a compiler is told."""

    combine: bool = True
    """Whether it may combine collectives into one."""
    options: tuple[str, ...] = ()
    """Further options of it, `NAME=VALUE`."""


DEFAULT = How()


@dataclasses.dataclass(frozen=True)
class Refused:
    """That a program does not fit, as `OutOfMemoryError` says it."""

    message: str
    used: int | None
    capacity: int | None


@dataclasses.dataclass(frozen=True)
class Record:
    """What a compiler said: one of the two."""

    compiled: Compiled | None = None
    refused: Refused | None = None


def compile_or_recall(
    plan: Plan, backend: Backend, folder: Path, how: How = DEFAULT
) -> Compiled | OutOfMemoryError:
    """What a compiler makes of a plan's partitioned form, from the folder if it is there.

    Raises:
      FileError: a file of the folder cannot be read.
      VerifyError: the compiler fails.
    """
    lowered = plan.lower(backend.device_mesh(plan.mesh))
    options = backend.options(combine=how.combine) | compiler_options(how.options)
    told = (lowered.as_text(), backend.topology, sorted(options.items()), versions(backend))
    path = folder / f"{hashlib.sha256(repr(told).encode()).hexdigest()[:24]}.json.gz"
    if path.exists():
        record = _read(path)
    else:
        try:
            record = Record(compiled=backend.compile(lowered, options))
        except OutOfMemoryError as error:
            record = Record(refused=Refused(str(error), error.used, error.capacity))
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(msgspec.json.encode(record)))
    if record.compiled is not None:
        return record.compiled
    assert record.refused is not None
    return OutOfMemoryError(**dataclasses.asdict(record.refused))


def versions(*backends: Backend) -> dict[str, str]:
    """Of all that has a say in what these backends compile."""
    packages = ("jax", "jaxlib", *(each.compiler for each in backends if each.compiler))
    return {name: metadata.version(name) for name in packages}


def _read(path: Path) -> Record:
    try:
        return msgspec.json.decode(gzip.decompress(path.read_bytes()), type=Record)
    except (OSError, EOFError, msgspec.DecodeError) as error:
        raise FileError(
            f"{path} is no compiled program that was kept ({error}); remove it"
        ) from error
