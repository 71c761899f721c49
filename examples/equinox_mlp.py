"""Equinox and Optax: a train step, partitioned by hand.

A module of Equinox holds arrays and other things, such as activation functions. The arrays are
arguments of the step; the other things are the same in every step, and are bound.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python examples/equinox_mlp.py
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import partita as pt


def make(key):
    return eqx.nn.MLP(in_size=32, out_size=32, width_size=128, depth=2, key=key)


def is_shape(leaf):
    return isinstance(leaf, jax.ShapeDtypeStruct)


_, static = eqx.partition(eqx.filter_eval_shape(make, jax.random.key(0)), is_shape)
optimizer = optax.adam(1e-2)


def init(key):
    params = eqx.filter(make(key), eqx.is_array)
    return params, optimizer.init(params)


def train_step(state, batch):
    def loss_fn(params):
        model = eqx.combine(params, static)
        return jnp.mean((jax.vmap(model)(batch["x"]) - batch["y"]) ** 2)

    params, opt_state = state
    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return (eqx.apply_updates(params, updates), opt_state), loss


def make_batch(number):
    x = np.random.default_rng(number).standard_normal((64, 32), np.float32)
    return {"x": x, "y": np.sin(x)}


def main():
    key = jax.random.key(0)
    plan = pt.plan(
        train_step,
        jax.eval_shape(init, key),
        make_batch(0),
        mesh="data=2,model=4",
        donate_argnums=0,
        tactics=[
            pt.ManualPartition({"batch*": 0}, axis="data"),
            # Rows of the first matrix; the columns of the second follow.
            pt.ManualPartition({"state[0].layers[0].weight": 0}, axis="model"),
        ],
    )
    print(plan)
    state, losses = plan.init(init, key), []
    step = plan.jit()
    for number in range(3):
        state, loss = step(state, make_batch(number))
        losses.append(float(loss))
    print("losses", *losses)
    return state, losses


if __name__ == "__main__":
    main()
