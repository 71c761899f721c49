"""How programs are rewritten: by patterns, one after the other, in an order that is listed."""

import itertools

import pytest

from partita.stablehlo import mlir
from partita.stablehlo.mlir import hlo, main_function, maker
from partita.stablehlo.normal_form import prepare
from partita.stablehlo.passes.driver import Pattern, run


def module(*lines, result):
    """A function of one argument, `%x`."""
    body = "\n".join(lines)
    return (
        f"func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> "
        f"{{ {body}\nreturn {result} : tensor<4xf32> }}"
    )


def unary(name, kind, operand):
    return f"{name} = stablehlo.{kind} {operand} : tensor<4xf32>"


def negates(op):
    return op.name == "stablehlo.negate"


def twice(op):
    """A value that is negated twice is itself."""
    inner = maker(op.operands[0])
    return [inner.operands[0]] if inner is not None and negates(inner) else None


def kinds(parsed):
    return [view.operation.name for view in main_function(parsed).entry_block.operations][:-1]


@pytest.mark.parametrize(("count", "left"), [(1, 1), (2, 1), (3, 2), (4, 2)])
def test_a_pattern_replaces_operations_in_order_and_says_whether_it_has(count, left):
    """Of negations in a row every second one goes; the others are read no more, or stay."""
    names = ["%x", *(f"%{n}" for n in range(count))]
    lines = [unary(b, "negate", a) for a, b in itertools.pairwise(names)]
    with mlir.context():
        parsed = mlir.parse(module(*lines, result=names[-1]))
        assert Pattern(negates, twice)(parsed) == (count > 1)
        assert kinds(parsed) == ["stablehlo.negate"] * left
        assert parsed.operation.verify()


def test_passes_run_in_order_and_mlirs_own_among_them():
    """What a pattern makes is seen by MLIR's pass behind it, and that by the next one."""
    to_zero = Pattern(negates, lambda op: [hlo.subtract(op.operands[0], op.operands[0])])
    seen = []
    with mlir.context():
        parsed = mlir.parse(module(unary("%0", "negate", "%x"), result="%0"))
        made = run(parsed, [to_zero, "canonicalize", lambda now: seen.append(kinds(now))])
        assert seen == [kinds(made)] == [["stablehlo.subtract"]]


def test_a_program_that_is_read_again_is_as_it_was():
    lines = (
        unary("%0", "sine", "%x"),
        "%1 = stablehlo.slice %0 [1:4] : (tensor<4xf32>) -> tensor<3xf32>",
        "%2 = stablehlo.slice %0 [0:1] : (tensor<4xf32>) -> tensor<1xf32>",
        "%3 = stablehlo.concatenate %1, %2, dim = 0 "
        ": (tensor<3xf32>, tensor<1xf32>) -> tensor<4xf32>",
        "%4 = stablehlo.constant dense<0.0> : tensor<4xf32>",
        "%5 = stablehlo.add %4, %3 : tensor<4xf32>",
    )
    with mlir.context():
        once = prepare(module(*lines, result="%5"))
        assert "partita.roll" in once and "stablehlo.add" not in once
        assert str(mlir.parse(prepare(once))) == str(mlir.parse(once))
