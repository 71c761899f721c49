"""What every process of `whole/test_broadcast.py` runs: plans made together, and one that dies.

python broadcast_worker.py RESULT --coordinator ADDRESS --processes N --process NUMBER
"""

import argparse
import os
import pickle
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np

import partita as pt
from partita.tactics import Outcome

parser = argparse.ArgumentParser()
parser.add_argument("result")
parser.add_argument("--coordinator")
parser.add_argument("--processes", type=int)
parser.add_argument("--process", type=int)
options = parser.parse_args()
jax.distributed.initialize(
    options.coordinator, options.processes, options.process, heartbeat_timeout_seconds=10
)
here = jax.process_index()
applied = []


class Rows:
    """A tactic that notes that it runs."""

    name = "Rows"

    def apply(self, stage):
        applied.append(stage)
        return pt.in_turn(stage, [pt.ManualPartition({"x": 0}, axis="data")])


class Fails:
    """A tactic that cannot be applied."""

    name = "Fails"

    def apply(self, stage) -> Outcome:
        raise pt.TacticError("there is nothing to shard")


def loss(w, x):
    return jnp.mean(jnp.tanh(x @ w) ** 2)


def other_loss(w, x):
    return jnp.mean(jnp.sin(x @ w) ** 2)


def array(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def together(fn=loss, rows=64, **changes):
    options = {"mesh": {"data": jax.device_count()}, "hardware": "cpu", "tactics": [Rows()]}
    args = array(16, 8), array(rows, 16)
    return pt.plan(fn, *args, **{**options, **changes}, broadcast=True)


def chosen():
    """The plan of a mesh that the first process chooses."""
    options = {"devices": 4, "hardware": "tpu_v5e", "budget": 20, "seed": here}
    plan = pt.plan(loss, array(16, 8), array(64, 16), broadcast=True, **options)
    return str(plan.done)


def error(**changes):
    """What a process says if the others differ from the first in this."""
    try:
        together(**changes)
    except pt.ProcessError as problem:
        return str(problem)
    return "no error"


plan = together()
w, x = np.ones((16, 8), np.float32), np.linspace(0, 1, 64 * 16, dtype=np.float32).reshape(64, 16)
found = {
    "plan": str(plan),
    "applied": len(applied),
    "loss": float(plan.jit()(*plan.shard(w, x))),
    "searched": str(together(tactics=[pt.AutomaticPartition(budget=20, seed=here)])),
    "chosen": chosen(),
    "shape": error(rows=64 + 8 * here),
    "operation": error(fn=other_loss if here else loss),
    "tactic": error(tactics=[Fails()]),
    "mesh": error(mesh="data=2,model=2" if here else "data=4"),
}
with open(options.result, "wb") as file:
    pickle.dump(found, file)


def dies(w, x):
    if here == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return loss(w, x)


print("waiting", flush=True)
began = time.monotonic()
try:
    together(fn=dies)
finally:
    print(f"waited {time.monotonic() - began:.0f} s", flush=True)
