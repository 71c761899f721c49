"""Shardy's rules, read from jaxlib for every operation: where they are wider is listed with why."""

from __future__ import annotations

import pytest
from test_rules import RULES

from partita.program.op_traits import OPERATIONS, traits
from partita.stablehlo.versions import JAX
from test_operations import RUN, make_plan
from wider_rules import LATER, WHY, wider

SQUARE, TALL, VALUES = "tensor<8x4x4xf32>", "tensor<8x6x4xf32>", "tensor<8x4xf32>"
NUMBERS = "tensor<8x4xi32>"

CALLS = {
    # target: types of operands, and of results
    **dict.fromkeys(
        (
            *("annotate_device_placement", "Cholesky", "CompactWyHelper", "LayoutConstraint"),
            *("InvertDiagBlocksLowerTriangular", "InvertDiagBlocksUpperTriangular", "mhlo.erf"),
            *("MoveToDevice", "MoveToHost", "X64SplitHigh", "X64SplitLow"),
        ),
        ([SQUARE], [SQUARE]),
    ),
    "Eigh": ([SQUARE], [SQUARE, VALUES]),
    "Qr": ([TALL], [TALL, VALUES]),
    "QrDecompositionBlock": ([TALL], [TALL, VALUES]),
    "ProductOfElementaryHouseholderReflectors": ([TALL, VALUES], [TALL]),
    "X64Combine": ([SQUARE, SQUARE], [SQUARE]),
    "mhlo.topk": ([VALUES], [VALUES, NUMBERS]),
    "ApproxTopK": ([VALUES, NUMBERS, "tensor<f32>", "tensor<i32>"], [VALUES, NUMBERS]),
}
"""Custom calls that Shardy has a rule for."""


def of_call(target):
    operands, results = CALLS[target]
    names = [f"%x{number}" for number in range(len(operands))]
    arguments = ", ".join(map(": ".join, zip(names, operands, strict=True)))
    made, types = f"%0:{len(results)}", f"({', '.join(results)})"
    returned = ", ".join(f"%0#{number}" for number in range(len(results)))
    return (
        f"module {{ func.func @main({arguments}) -> {types} {{ "
        f"{made} = stablehlo.custom_call @{target}({', '.join(names)}) "
        "{mhlo.backend_config = {reduction_dim = 1 : i64}} : "
        f"({', '.join(operands)}) -> {types} return {returned} : {', '.join(results)} }} }}"
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Where Shardy's rules are wider, in every example of an operation."""
    folder = tmp_path_factory.mktemp("examples")
    texts = [make_plan(kind, folder)[2].program.module for kind in RUN]
    return set().union(*map(wider, [*texts, *map(of_call, CALLS)]))


def test_where_they_are_wider_is_listed(found, program):
    """Whoever widens a rule takes its entry off the list; a wider one of Shardy's is put on it."""
    examples = [program(fn, *types).module for _, fn, types, *_ in RULES]
    found = found.union(*map(wider, examples))
    assert found <= WHY.keys()
    if JAX < (0, 11):
        assert found == WHY.keys() - LATER


def test_every_operation_has_an_example():
    shardable = {kind for kind in OPERATIONS if traits(kind).shardable}
    assert shardable <= set(RUN)
