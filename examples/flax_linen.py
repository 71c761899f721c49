"""Flax Linen and Optax: a train step whose layout is written in the model, as logical axis names.

XLA_FLAGS=--xla_force_host_platform_device_count=8 python examples/flax_linen.py
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState

import partita as pt


def named(initializer, *names):
    return nn.with_logical_partitioning(initializer, names)


class Block(nn.Module):
    """A feed-forward block; the names say what its dimensions are, not where they go."""

    hidden: int

    @nn.compact
    def __call__(self, x):
        normal, zeros = nn.initializers.lecun_normal(), nn.initializers.zeros
        h = nn.LayerNorm()(x)
        h = nn.Dense(
            self.hidden,
            kernel_init=named(normal, "embed", "mlp"),
            bias_init=named(zeros, "mlp"),
        )(h)
        return x + nn.Dense(x.shape[-1], kernel_init=named(normal, "mlp", "embed"))(nn.gelu(h))


model = nn.Sequential([Block(128), Block(128)])
optimizer = optax.adam(1e-2)


def init(key):
    params = model.init(key, jnp.zeros((1, 32)))["params"]
    return TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)


def train_step(state, batch):
    def loss_fn(params):
        return jnp.mean((state.apply_fn({"params": params}, batch["x"]) - batch["y"]) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def make_batch(number):
    x = np.random.default_rng(number).standard_normal((64, 32), np.float32)
    return {"x": x, "y": np.sin(x)}


def main():
    key = jax.random.key(0)
    plan = pt.plan(
        train_step,
        jax.eval_shape(init, key),  # with the boxes that hold the names
        make_batch(0),
        mesh="data=2,model=4",
        donate_argnums=0,
        tactics=[
            pt.ManualPartition({"batch*": 0}, axis="data"),
            pt.LogicalAxes({"embed": "data", "mlp": "model"}),
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
