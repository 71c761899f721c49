"""Shardings that the arguments and results of a module already have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partita.errors import UnsupportedError
from partita.program.ir import GivenSharding
from partita.program.refused import INSTEAD
from partita.stablehlo import mlir
from partita.stablehlo.shardings import Said, meshes_of, read_sharding, says_nothing


def given_shardings(
    module: Any,
    main: Any,
    arguments: Sequence[tuple[str, int]],
    results: Sequence[tuple[str, int]],
) -> tuple[GivenSharding, ...]:
    """Reads `sdy.sharding` and `mhlo.sharding` of a function's arguments and results.

    Args:
      module: where the meshes are.
      main: the function.
      arguments: name and value of every argument.
      results: the same of every result.

    Raises:
      UnsupportedError: a sharding that no `PartitionSpec` can say.
    """
    meshes = meshes_of(module)
    found: list[GivenSharding] = []
    for which, named in (("arg_attrs", arguments), ("res_attrs", results)):
        infos = mlir.attributes_of(main, which, len(named))
        for (name, value), info in zip(named, infos, strict=True):
            if "sdy.sharding" in info:
                sharding = info["sdy.sharding"]
                if not says_nothing(sharding, meshes):
                    found.append(_given(name, value, read_sharding(sharding, meshes, name)))
            elif "mhlo.sharding" in info:
                _check_replicated(name, info["mhlo.sharding"].value)
    return tuple(found)


def _given(name: str, value: int, said: Said) -> GivenSharding:
    if len(set(said.open)) > 1:
        raise UnsupportedError(
            f"the sharding of {name} leaves only some dimensions open; {INSTEAD}, or constrain it "
            "inside of the function"
        )
    return GivenSharding(name, value, said.axes, True in said.open, said.mesh)


def _check_replicated(name: str, given: str) -> None:
    if given != "{replicated}":
        raise UnsupportedError(
            f"the sharding of {name}, {given!r}, does not say which axis is which; {INSTEAD}, or "
            "export the program with Shardy (jax_use_shardy_partitioner)"
        )
