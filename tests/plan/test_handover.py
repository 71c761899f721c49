"""Programs that are handed over: written in this process, run in others that have no model.

The other processes get the files and this page's scripts, nothing else.
"""

import os
import subprocess
import sys
import textwrap
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import partita as pt

pytestmark = pytest.mark.xdist_group("handover")  # so that the files are written once

TACTICS = [pt.ManualPartition({"batch*": 0}, axis="data"), pt.ManualPartition({"*w*": 1}, "model")]
optimizer = optax.adam(1e-2)


def init():
    params = {"w": jnp.linspace(-1, 1, 16 * 32).reshape(16, 32)}
    return params, optimizer.init(params)


def train_step(state, batch):
    params, opt_state = state
    loss, grads = jax.value_and_grad(lambda p: jnp.mean((batch["x"] @ p["w"]) ** 2))(params)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), loss


BATCH = {"x": jnp.linspace(0, 1, 8 * 16).reshape(8, 16)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the programs of a plan and its arguments."""
    folder = tmp_path_factory.mktemp("handed")
    state = init()
    options = {"mesh": "data=4,model=2", "hardware": "cpu", "tactics": TACTICS}
    plan = pt.plan(train_step, state, BATCH, donate_argnums=0, **options)
    plan.export(folder / "step.jaxexport")
    plan.export(folder / "step.mlir")
    lowered = jax.jit(train_step).lower(state, BATCH).compiler_ir("stablehlo")
    (folder / "model.mlir").write_text(lowered.operation.get_asm(enable_debug_info=True))
    np.savez(folder / "arguments.npz", *jax.tree.leaves((state, BATCH)))
    return folder


def run(folder, script, devices=8):
    """Runs a script in a process of its own: what it prints, or the end of its error."""
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


WITH_JAX_ALONE = """
    import sys
    from pathlib import Path

    import jax
    import numpy as np

    step = jax.export.deserialize(bytearray(Path("step.jaxexport").read_bytes()))
    auto = jax.sharding.AxisType.Auto
    mesh = jax.make_mesh((jax.device_count() // 2, 2), ("data", "model"), axis_types=(auto, auto))
    shardings = step.in_shardings_jax(mesh)
    arrays = np.load("arguments.npz").values()
    args, kwargs = jax.tree.unflatten(step.in_tree, list(map(jax.device_put, arrays, shardings)))
    (state, loss) = jax.jit(step.call, donate_argnums=0)(*args, **kwargs)
    assert "partita" not in sys.modules and "optax" not in sys.modules
    assert args[0][0]["w"].is_deleted()
    print(float(loss), state[0]["w"].sharding.spec, type(state[1][0]).__name__)
"""


def test_an_exported_program_runs_with_jax_alone(folder):
    loss, rest = run(folder, WITH_JAX_ALONE).split(" ", 1)
    np.testing.assert_allclose(float(loss), train_step(init(), BATCH)[1], rtol=1e-5)
    assert rest == "P(None, 'model') tuple\n"


def test_another_number_of_devices_is_an_error_that_says_both(folder):
    said = run(folder, WITH_JAX_ALONE, devices=4)
    assert said.startswith("ValueError: ")
    assert "'data': 2, 'model': 2" in said and "'data': 4, 'model': 2" in said


def test_programs_as_text_are_planned_and_run_where_there_is_no_model(folder):
    said = run(
        folder,
        """
        import numpy as np
        import partita as pt

        arrays = list(np.load("arguments.npz").values())
        mesh = {"mesh": "data=4,model=2", "hardware": "cpu"}

        partitioned = pt.plan("step.mlir", tactics=[], **mesh)  # as it was planned elsewhere
        print(float(partitioned.jit()(*arrays)[-1]), {c.kind for c in partitioned.collectives})

        names = pt.read("model.mlir").program.argument_names
        tactics = [
            pt.ManualPartition({names[-1]: 0}, axis="data"),
            pt.ManualPartition({names[0]: 1}, axis="model"),
        ]
        planned = pt.plan("model.mlir", tactics=tactics, **mesh)
        planned.export("planned.mlir")
        planned.save("plan.json")
        results = pt.load("plan.json", "model.mlir").jit()(*arrays)
        print(float(results[-1]), results[0].sharding.spec)
        """,
    )
    losses, rests = zip(*(line.split(" ", 1) for line in said.splitlines()), strict=True)
    np.testing.assert_allclose(np.float64(losses), train_step(init(), BATCH)[1], rtol=1e-5)
    assert rests == ("{'all_reduce'}", "P(None, 'model')")
    text = (folder / "planned.mlir").read_text()
    assert "sdy.manual_computation" in text and "stablehlo.all_reduce" in text


class Sums(NamedTuple):
    total: jax.Array
    last: dict[str, jax.Array]


def test_classes_are_tuples_in_a_file_for_others(tmp_path):
    def add(sums, x):
        return Sums(sums.total + x.sum(), {"x": x})

    sums = Sums(jnp.zeros(()), BATCH)
    plan = pt.plan(add, sums, BATCH["x"], mesh="data=8", hardware="cpu", tactics=[])
    with pytest.raises(pt.FileError, match="JAX cannot serialize the arguments"):
        plan.export(tmp_path / "step.bin")
    plan.export(tmp_path / "step.jaxexport")
    exported = jax.export.deserialize(bytearray((tmp_path / "step.jaxexport").read_bytes()))
    nested = jax.tree.unflatten(exported.in_tree, range(len(exported.in_avals)))
    assert nested == (((0, {"x": 1}), 2), {})
