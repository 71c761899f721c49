"""One training program for many hosts. Every process runs this script.

On a Cloud TPU slice, under SLURM and under Open MPI 4, JAX finds the other processes by itself.
Elsewhere, say where the first one listens, how many there are, and which one this is:

python examples/many_hosts.py --coordinator 10.0.0.1:1234 --processes 2 --process 0
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax

import partita as pt

ROWS, EMBED, HIDDEN = 64, 32, 128
optimizer = optax.adam(1e-2)


def init(key):
    up, down = jax.random.split(key)
    params = {
        "up": 0.1 * jax.random.normal(up, (EMBED, HIDDEN)),
        "down": 0.1 * jax.random.normal(down, (HIDDEN, EMBED)),
    }
    return params, optimizer.init(params)


def train_step(state, batch):
    def loss_fn(params):
        hidden = jax.nn.relu(batch["x"] @ params["up"])
        return jnp.mean((hidden @ params["down"] - batch["y"]) ** 2)

    params, opt_state = state
    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), loss


def make_plan():
    row = jax.ShapeDtypeStruct((ROWS, EMBED), jnp.float32)
    return pt.plan(
        train_step,
        jax.eval_shape(init, jax.random.key(0)),
        {"x": row, "y": row},
        mesh={"data": jax.device_count() // 2, "model": 2},  # all devices, of all processes
        donate_argnums=0,
        tactics=[
            pt.ManualPartition({"batch*": 0}, axis="data"),
            pt.ManualPartition({"*['up']": 1}, axis="model"),
            pt.AutomaticPartition(axes=["data"]),
        ],
    )


def read_rows(number, rows):
    """Rows of a batch. A real program reads these, and no others, from its files."""
    x = np.random.default_rng(number).standard_normal((ROWS, EMBED), np.float32)[rows]
    return {"x": x, "y": np.sin(x)}


def rows_here(sharding):
    """Numbers of the rows of a batch that the devices of this process take, in order."""
    shards = sharding.addressable_devices_indices_map((ROWS, EMBED)).values()
    return np.unique(np.concatenate([np.arange(ROWS)[rows] for rows, _ in shards]))


def train(plan, steps=3):
    _, batch_shapes = plan.abstract()
    rows = rows_here(batch_shapes["x"].sharding)
    state, losses = plan.init(init, jax.random.key(0)), []
    step = plan.jit()
    for number in range(steps):
        batch = jax.tree.map(
            lambda shape, shard: jax.make_array_from_process_local_data(
                shape.sharding, shard, shape.shape
            ),
            batch_shapes,
            read_rows(number, rows),
        )
        state, loss = step(state, batch)
        losses.append(float(loss))  # every process has the loss
        if jax.process_index() == 0:
            print("step", number, "loss", losses[-1])
    return state, losses


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--coordinator", help="host:port of the first process")
    parser.add_argument("--processes", type=int, help="how many there are")
    parser.add_argument("--process", type=int, help="the number of this one")
    options = parser.parse_args()
    # Before anything asks JAX for devices.
    jax.distributed.initialize(options.coordinator, options.processes, options.process)
    return train(make_plan())


if __name__ == "__main__":
    main()
