"""What every process of `whole/test_change_mesh.py` runs: the example, and what comes of it.

python change_mesh_worker.py EXAMPLE RESULT DIES [arguments of the example]

DIES is the number of the step at whose commit process 0 is killed, or -1.
"""

import os
import pickle
import runpy
import signal
import sys
from pathlib import Path

import jax
import numpy as np
import tensorstore

path, result, dies, *arguments = sys.argv[1:]


def read():
    """Bytes that this process has read from checkpoints."""
    metrics = tensorstore.experimental_collect_matching_metrics(
        "/tensorstore/kvstore/file/bytes_read"
    )
    return sum(each["value"] for metric in metrics for each in metric["values"])


rename = os.rename


def commit(source, target, **options):
    """Renames a file; what is written for a step is complete once its folder has its name."""
    if Path(target).name == dies:
        os.kill(os.getpid(), signal.SIGKILL)
    rename(source, target, **options)


os.rename = commit

sys.argv = [path, *arguments]
example = runpy.run_path(path)
restored = []
original = example["restore_or_init"]


def restore_or_init(*arguments):
    """What the example does, noted."""
    before = read()
    first, state = original(*arguments)
    leaves = jax.tree.leaves(state)
    restored.append(
        {
            "first": first,
            "read": read() - before,
            "bytes": sum(leaf.nbytes for leaf in leaves),
            "here": [
                sum({str(s.index): s.data.nbytes for s in leaf.addressable_shards}.values())
                for leaf in leaves
            ],
            "shardings": [str(leaf.sharding.spec) for leaf in leaves],
        }
    )
    return first, state


example["train"].__globals__["restore_or_init"] = restore_or_init
state, losses = example["main"]()


def pieces(leaf):
    return [(shard.index, np.asarray(shard.data)) for shard in leaf.addressable_shards]


with open(result, "wb") as file:
    pickle.dump(
        {"losses": losses, "state": list(map(pieces, jax.tree.leaves(state))), **restored[0]}, file
    )
