"""Orbax: a training run that goes on over another mesh, in another number of processes.

Every process runs this script. The first time it starts from the beginning, later from the last
checkpoint that is complete, whatever mesh and processes that was written by:

export XLA_FLAGS=--xla_force_host_platform_device_count=8
python examples/change_mesh.py --folder /tmp/run --mesh data=4,model=2 --steps 3
python examples/change_mesh.py --folder /tmp/run --mesh data=2,model=4 --steps 6

For several processes, see examples/many_hosts.py.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp

import partita as pt

EMBED, HIDDEN = 64, 256
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


def make_batch(number):
    x = np.random.default_rng(number).standard_normal((64, EMBED), np.float32)
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


def restore_or_init(plan, checkpoints):
    """The number of the next step, and the state: each device gets its own shard, and no other."""
    last = checkpoints.latest_step()  # those that were not written to their end do not count
    if last is None:
        return 0, plan.init(init, jax.random.key(0))
    shapes, _ = plan.abstract()  # with the shardings of the plan
    return last + 1, checkpoints.restore(last, args=ocp.args.StandardRestore(shapes))


def train(mesh, folder, steps):
    plan = make_plan(mesh)
    step, losses = plan.jit(), {}
    with ocp.CheckpointManager(folder) as checkpoints:
        first, state = restore_or_init(plan, checkpoints)
        for number in range(first, steps):
            _, batch = plan.shard(state, make_batch(number))
            state, loss = step(state, batch)
            losses[number] = float(loss)
            checkpoints.save(number, args=ocp.args.StandardSave(state))
    return state, losses


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True, help="where the checkpoints are")
    parser.add_argument("--mesh", required=True)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--coordinator", help="host:port of the first process")
    parser.add_argument("--processes", type=int, help="how many there are")
    parser.add_argument("--process", type=int, help="the number of this one")
    options = parser.parse_args()
    if options.coordinator:
        jax.distributed.initialize(options.coordinator, options.processes, options.process)
    state, losses = train(options.mesh, options.folder, options.steps)
    if jax.process_index() == 0:
        print("losses", losses)
    return state, losses


if __name__ == "__main__":
    main()
