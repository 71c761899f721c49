"""What every process of `test_many_hosts.py` runs: the example, and what comes of it into a file.

python many_hosts_worker.py EXAMPLE RESULT [arguments of the example]
"""

import pickle
import runpy
import sys

import jax
import numpy as np

import partita as pt

path, result, *arguments = sys.argv[1:]
sys.argv = [path, *arguments]
example = runpy.run_path(path)
state, losses = example["main"]()


def pieces(tree):
    """Of every array, the pieces on the devices of this process, each with where it lies."""
    return [
        [(shard.index, np.asarray(shard.data)) for shard in leaf.addressable_shards]
        for leaf in jax.tree.leaves(tree)
    ]


plan = example["make_plan"]()
whole = {name: np.arange(64 * 32, dtype=np.float32).reshape(64, 32) for name in "xy"}
_, batch = plan.shard(jax.tree.map(lambda s: np.ones(s.shape, s.dtype), plan.abstract()[0]), whole)
try:
    pt.plan(lambda x: x + x, whole["x"], mesh="data=4", tactics=[]).jit()
    message = "no error"
except pt.MeshError as error:
    message = str(error)

with open(result, "wb") as file:
    pickle.dump(
        {
            "losses": losses,
            "plan": str(plan),
            "module": plan.exported.mlir_module_serialized,
            "state": pieces(state),
            "batch": pieces(batch),
            "half": message,
        },
        file,
    )
