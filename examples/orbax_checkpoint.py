"""Orbax: a checkpoint, restored in the shards that another plan wants, and trained on.

XLA_FLAGS=--xla_force_host_platform_device_count=8 python examples/orbax_checkpoint.py
"""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp

import partita as pt

optimizer = optax.adam(1e-2)


def init(key):
    up, down = jax.random.split(key)
    params = {
        "up": 0.1 * jax.random.normal(up, (32, 128)),
        "down": 0.1 * jax.random.normal(down, (128, 32)),
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


def make_batch(number):
    x = np.random.default_rng(number).standard_normal((64, 32), np.float32)
    return {"x": x, "y": np.sin(x)}


def make_plan(mesh):
    return pt.plan(
        train_step,
        jax.eval_shape(init, jax.random.key(0)),
        make_batch(0),
        mesh=mesh,
        donate_argnums=0,
        tactics=[
            pt.ManualPartition({"batch*": 0}, axis="data"),
            pt.ManualPartition({"*['up']": 1}, axis="model"),
        ],
    )


def main():
    with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as checkpointer:
        plan = make_plan("data=4,model=2")
        state, loss = plan.jit()(plan.init(init, jax.random.key(0)), make_batch(0))
        losses = [float(loss)]
        checkpointer.save(Path(folder) / "state", state)
        checkpointer.wait_until_finished()

        # Later, elsewhere: the plan for another mesh says which shard every device reads.
        plan = make_plan("data=2,model=4")
        shapes, _ = plan.abstract()
        state = checkpointer.restore(Path(folder) / "state", shapes)
        print(jax.tree.map(lambda leaf: leaf.sharding.spec, state[0]))

        step = plan.jit()
        for number in (1, 2):
            state, loss = step(state, make_batch(number))
            losses.append(float(loss))
    print("losses", *losses)
    return state, losses


if __name__ == "__main__":
    main()
