"""Haiku and Optax: a train step, the batch split by hand and the rest by search.

XLA_FLAGS=--xla_force_host_platform_device_count=8 python examples/haiku_mlp.py
"""

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax

import partita as pt


def forward(x):
    h = hk.LayerNorm(axis=-1, create_scale=True, create_offset=True)(x)
    return x + hk.nets.MLP([128, 128, 32])(h)


model = hk.without_apply_rng(hk.transform(forward))
optimizer = optax.adam(1e-2)


def init(key):
    params = model.init(key, jnp.zeros((1, 32)))
    return params, optimizer.init(params)


def train_step(state, batch):
    def loss_fn(params):
        return jnp.mean((model.apply(params, batch["x"]) - batch["y"]) ** 2)

    params, opt_state = state
    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), loss


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
        memory="180KiB",  # of each device: less than the whole state takes
        donate_argnums=0,
        tactics=[
            pt.ManualPartition({"batch*": 0}, axis="data"),
            pt.AutomaticPartition(budget=200),
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
