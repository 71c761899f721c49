"""Python without its assertions (`python -O`): plans run as they do otherwise, and what cannot be
done ends with an error.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import partita

TESTS = Path(__file__).parent
PACKAGE = Path(partita.__file__).parent

SCRIPT = """
import conftest, jax, numpy as np
import partita as pt
import unusual
from partita.mesh import Mesh
from partita.program.ir import TensorType
from partita.spmd.reshard import reshard

assert False, "assertions are looked at"
try:
    reshard(TensorType((3,), "f32"), ((),), frozenset(), ((0,),), Mesh.of("x=2"))
except AssertionError as error:
    print(error)
for name in ("a loop in a loop", "weights averaged in a branch"):
    made = unusual.PROGRAMS[name]
    args = made.arguments()
    plan = pt.plan(made.fn, *args, mesh="x=2,y=2", hardware="cpu", budget=20)
    ours, theirs = plan.jit()(*plan.shard(*args)), jax.jit(made.fn)(*args)
    for mine, their in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(mine, their, rtol=1e-4, atol=1e-4)
    print(name)
"""


def test_plans_run_without_assertions():
    done = subprocess.run(
        [sys.executable, "-O", "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "no way from [()] to ((0,),)",
        "a loop in a loop",
        "weights averaged in a branch",
    ], done.stderr


def narrows(test: ast.expr) -> bool:
    """Whether a condition only tells a type checker that something is not None."""
    if isinstance(test, ast.BoolOp):
        return isinstance(test.op, ast.And) and all(map(narrows, test.values))
    return (
        isinstance(test, ast.Compare)
        and [type(op) for op in test.ops] == [ast.IsNot]
        and ast.unparse(test.comparators[0]) == "None"
        and not any(isinstance(node, ast.Call | ast.NamedExpr) for node in ast.walk(test))
    )


@pytest.mark.parametrize(
    ("condition", "only"),
    [
        ("a is not None", True),
        ("a.b is not None and c[0] is not None", True),
        ("a or b is not None", False),
        ("went", False),
        ("f() is not None", False),
        ("(a := b) is not None", False),
    ],
)
def test_what_narrows_a_type(condition, only):
    assert narrows(ast.parse(condition, mode="eval").body) is only


def test_nothing_depends_on_assertions():
    """Checks that matter raise: an assertion says no more than what a type checker needs."""
    others = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Assert) and not narrows(node.test)
    ]
    assert not others
