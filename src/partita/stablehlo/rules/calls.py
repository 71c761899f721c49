"""Sharding rules of custom calls: which are known, and along what each can be sharded.

What a call does is known by its target alone, and its code takes what a device has of its operands
only along dimensions that it treats one index like another. Shardy's rules say more: along which
dimensions a sharding passes on, though the call needs all of them. A call that is not known here,
and whose batch dimensions nothing declares, is replicated.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from partita.errors import RuleError
from partita.program.ir import TensorType
from partita.program.rule import Rule
from partita.stablehlo import attributes
from partita.stablehlo.rules import notation, registry

Types = Sequence[TensorType]
Write = Callable[[Any, Types, Types], str | None]
"""Function from an MLIR operation and types of operands and results to a rule for `notation`.

It returns None where the operation is not what its target says.
"""

PARTITIONED_CALL = "partita.partitioned"
"""Target of the custom calls that stand for custom_partitioning functions."""

PLACEMENT = "annotate_device_placement"
"""Target of the custom call whose result is its operand, in another memory."""

_BATCHED = "num_batch_dims"
"""The attribute of a call that takes any size along its first dimensions, which JAX writes for XLA:
how many they are."""


class Call(NamedTuple):
    """A kind of custom calls."""

    targets: tuple[str, ...]
    """Patterns of targets."""
    along: str
    """Along which dimensions they can be sharded, in words."""
    write: Write


def of_call(op: Any, target: str, operands: Types, results: Types) -> Rule | None:
    """The rule of a custom call; None if it is not known.

    A rule that the user has registered comes first, then what the call says of itself.

    Args:
      op: the MLIR operation.
      target: what it calls.
      operands: types of what it reads.
      results: types of what it makes.
    """
    if target in registry.RULES:
        return notation.read(registry.RULES[target], operands, results, target)
    batch = attributes.get(op, _BATCHED)
    if batch.isdecimal():
        text = _batched(int(batch), operands, results)
    else:
        call = _known(target)
        text = call.write(op, operands, results) if call else None
    return notation.read(text, operands, results, target) if text else None


def of_kernel(name: str, operands: Types, results: Types) -> Rule | None:
    """The rule that a user has given for a kernel, which is compiled for the sizes of the whole.

    None without.

    Raises:
      RuleError: the user has not said what a device runs on shards.
    """
    if name not in registry.RULES:
        return None
    if name not in registry.LOCAL:
        raise RuleError(
            f"the kernel {name!r} has a rule, but is compiled for the sizes of the whole; say what "
            "a device runs on its shards: register_rule(..., local=function)"
        )
    return notation.read(registry.RULES[name], operands, results, name)


@functools.cache
def _known(target: str) -> Call | None:
    fits = (c for c in CALLS if any(fnmatchcase(target, pattern) for pattern in c.targets))
    return next(fits, None)


def _pointwise(op: Any, operands: Types, results: Types) -> str | None:
    """Every element of a result is made of those of the operands at its place."""
    shapes = {type_.shape for type_ in (*operands, *results)}
    return _batched(len(shapes.pop()), operands, results) if len(shapes) == 1 else None


def _matrices(op: Any, operands: Types, results: Types) -> str | None:
    """The last two dimensions of the operand that has most are one matrix."""
    return _batched(_most(operands) - 2, operands, results)


def _vectors(op: Any, operands: Types, results: Types) -> str | None:
    return _batched(_most(operands) - 1, operands, results)


def _most(types: Types) -> int:
    return max((len(type_.shape) for type_ in types), default=0)


def _top_k(op: Any, operands: Types, results: Types) -> str | None:
    """Returns a rule over all dimensions of the operand except the searched one, wherever it is."""
    dim = _searched(op)
    rank = _most(operands)
    if dim is None or not 0 <= dim < rank:
        return None
    batch = [other for other in range(rank) if other != dim]
    return _written(batch, operands, results)


def _searched(op: Any) -> int | None:
    """Returns the dimension that a top-k call searches, as the call gives it."""
    for key in ("mhlo.backend_config", "backend_config"):
        said: Any = op.attributes.get(key, None)
        if hasattr(said, "value"):  # text, of calls that XLA makes itself
            return _parsed(said.value)
        if said is not None and "reduction_dim" in said:
            return int(said["reduction_dim"].value)
    return None


def _parsed(text: str) -> int | None:
    try:
        found = json.loads(text)["reduction_dim"]
    except (ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, int) else None


def _batched(count: int, operands: Types, results: Types) -> str | None:
    """The first dimensions are batch dimensions; those of tensors that have as many."""
    return _written(range(count), operands, results)


def _written(batch: Iterable[int], operands: Types, results: Types) -> str | None:
    """The rule with these dimensions equal in all tensors that have them, the others apart.

    None if they do not have one size in all of them.
    """
    dims = set(batch)
    least = max(dims, default=-1) + 1
    sizes: dict[int, int] = {}
    sides = []
    for types, side in ((operands, "i"), (results, "o")):
        tensors = []
        for number, type_ in enumerate(types):
            here = dims if len(type_.shape) >= least else ()
            if any(sizes.setdefault(dim, type_.shape[dim]) != type_.shape[dim] for dim in here):
                return None
            words = [
                f"b{dim}" if dim in here else f"{side}{number}_{dim}!"
                for dim in range(len(type_.shape))
            ]
            tensors.append(" ".join(words))
        sides.append(", ".join(tensors))
    return " -> ".join(sides)


CALLS: tuple[Call, ...] = (
    Call(
        (
            *(PLACEMENT, "MoveToDevice", "MoveToHost", "LayoutConstraint"),
            *("mhlo.erf", "X64Combine", "X64SplitHigh", "X64SplitLow"),
            *("cu_threefry2x32_ffi", "hip_threefry2x32_ffi", "xla.megascale.provide_metadata"),
        ),
        "every dimension",
        _pointwise,
    ),
    Call(
        (
            *("Cholesky", "CompactWyHelper", "Eigh", "InvertDiagBlocks*Triangular"),
            *("LuDecomposition", "ProductOfElementaryHouseholderReflectors"),
            *("Qr", "QrDecompositionBlock", "cusolver_syrk_ffi", "hipsolver_syrk_ffi"),
        ),
        "batch dimensions: all before the last two of its matrices",
        _matrices,
    ),
    Call(
        ("mhlo.topk", "TopK"),
        "batch dimensions: all before the last of its vectors",
        _vectors,
    ),
    Call(("ApproxTopK", "PartialReduce"), "every dimension but the one that is searched", _top_k),
)
"""The calls of JAX and XLA whose targets are known. Those of LAPACK and of its like on GPUs say
themselves how many batch dimensions they have."""
