"""The fingerprint of a program: what it depends on, and what not."""

import dataclasses
import os
import subprocess
import sys
import textwrap
import time

import jax
import jax.numpy as jnp
import pytest

from partita.frontend.calling import Marked
from partita.frontend.trace import trace
from partita.program.fingerprint import fingerprint
from partita.stablehlo import mlir

CODE = """
def fn(x, w):
    def body(carry, row):
        return jnp.tanh(carry @ w), row.sum()
    return jax.lax.scan(body, x, x), jnp.argsort(x)
"""
X, W = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8, 8), (8, 8)))


def program(code=CODE, name="fn", file="a.py", types=(X, W), **options):
    """The program of a function whose source is given, as if it stood in this file."""
    namespace = {"jax": jax, "jnp": jnp}
    exec(compile(code, file, "exec"), namespace)
    return trace(namespace[name], types, {}, **options).program


def digest(*args, **options):
    return fingerprint(program(*args, **options)).digest


def test_it_does_not_depend_on_where_the_code_is():
    here, moved = program(), program("\n\n\n" + CODE, file="elsewhere/b.py")
    assert here.module != moved.module
    assert {op.source for op in here.operations} != {op.source for op in moved.operations}
    assert fingerprint(here) == fingerprint(moved)


def test_it_does_not_depend_on_the_name_of_the_function():
    assert digest() == digest(CODE.replace("def fn", "def other"), name="other")
    lambdas = program("fn = lambda x, w: x @ w"), program("def g(x, w): return x @ w", name="g")
    assert fingerprint(lambdas[0]) == fingerprint(lambdas[1])


@pytest.mark.parametrize("seed", ["0", "7"])
def test_it_does_not_depend_on_the_process(seed):
    script = f"""
        import jax, jax.numpy as jnp
        from partita.program.fingerprint import fingerprint
        from partita.frontend.trace import trace
        {textwrap.indent(CODE, " " * 8).strip()}
        x = jax.ShapeDtypeStruct((8, 8), jnp.float32)
        print(fingerprint(trace(fn, (x, x), {{}}).program).digest)
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == digest()


CHANGES = {
    "an operation": ("tanh", "sin"),
    "wiring": ("carry @ w", "w @ carry"),
    "a type": ("row.sum()", "row.sum().astype(jnp.bfloat16)"),
    "a constant": ("row.sum()", "row.sum() * 2"),
    "an attribute": ("jnp.argsort(x)", "jnp.argsort(x, axis=0)"),
    "the order of results": ("body, x, x), jnp.argsort(x)", "body, x, x)[::-1], jnp.argsort(x)"),
    "trips of a loop": ("body, x, x)", "body, x, x[:4])"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_it_depends_on_every_part_of_the_program(name):
    changed = CODE.replace(*CHANGES[name])
    assert changed != CODE
    assert digest(changed) != digest()


def test_it_depends_on_types_and_donation():
    narrow = jax.ShapeDtypeStruct((8, 8), jnp.bfloat16)
    found = [digest(), digest(types=(narrow, narrow)), digest(marked=Marked.of(donate_argnums=0))]
    assert len(set(found)) == 3


def test_it_depends_on_one_element_of_a_constant():
    code = "table = jnp.arange(1000.0)\ndef fn(x, w): return x[0, 0] * table{}"
    assert digest(code.format("")) != digest(code.format(".at[500].set(-1.0)"))


def test_its_lines_are_those_that_mlir_prints_without_locations():
    text = program().module
    with mlir.context():
        module = mlir.parse(text).operation
        plain = module.get_asm(enable_debug_info=False)
        located = module.get_asm(enable_debug_info=True)
    assert "loc(" in located and "loc(" not in plain
    given, same = (
        fingerprint(dataclasses.replace(program(), module=text)) for text in (plain, located)
    )
    assert given == same


def test_a_text_that_looks_like_a_location_counts():
    def call(config):
        return f"""
def fn(x, w):
    return jax.ffi.ffi_call("mine", jax.ShapeDtypeStruct((8, 8), jnp.float32))(x, a='{config}')
"""

    assert digest(call("loc(#loc1)")) != digest(call("loc(#loc2)"))
    assert digest(call('" loc(#loc1)')) != digest(call('" loc(#loc2)'))


def test_it_is_quick(gpt_program):
    made = gpt_program(4)
    start = time.process_time()
    fingerprint(made)
    seconds = time.process_time() - start
    assert seconds / len(made.operations) < 0.3 / 12_000
