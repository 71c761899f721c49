"""Flax NNX and Optax: model and optimizer split into a graph and a state, the state partitioned.

XLA_FLAGS=--xla_force_host_platform_device_count=8 python examples/flax_nnx.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import partita as pt


def named(*names):
    return nnx.with_partitioning(nnx.initializers.lecun_normal(), names)


class Block(nnx.Module):
    """A feed-forward block; the names say what its dimensions are, not where they go."""

    def __init__(self, embed, hidden, rngs):
        self.norm = nnx.LayerNorm(embed, rngs=rngs)
        self.up = nnx.Linear(embed, hidden, kernel_init=named("embed", "mlp"), rngs=rngs)
        self.down = nnx.Linear(hidden, embed, kernel_init=named("mlp", "embed"), rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        return x + self.dropout(self.down(nnx.gelu(self.up(self.norm(x)))))


def make(key):
    # The plan places the variables: NNX need not do so when it makes them.
    with nnx.use_eager_sharding(False):
        rngs = nnx.Rngs(key)
        model = nnx.Sequential(Block(32, 128, rngs), Block(32, 128, rngs))
        return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


graph, shapes = nnx.split(nnx.eval_shape(make, jax.random.key(0)))


def init(key):
    return nnx.state(make(key))


def train_step(state, batch):
    def loss_fn(model):
        return jnp.mean((model(batch["x"]) - batch["y"]) ** 2)

    model, optimizer = nnx.merge(graph, state)
    loss, grads = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, grads)
    return nnx.state((model, optimizer)), loss


def make_batch(number):
    x = np.random.default_rng(number).standard_normal((64, 32), np.float32)
    return {"x": x, "y": np.sin(x)}


def main():
    plan = pt.plan(
        train_step,
        shapes,
        make_batch(0),
        mesh="data=2,model=4",
        donate_argnums=0,
        tactics=[
            pt.ManualPartition({"batch*": 0}, axis="data"),
            pt.LogicalAxes({"embed": "data", "mlp": "model"}),
        ],
    )
    print(plan)
    state, losses = plan.init(init, jax.random.key(0)), []
    step = plan.jit()
    for number in range(3):
        state, loss = step(state, make_batch(number))
        losses.append(float(loss))
    print("losses", *losses)
    return state, losses


if __name__ == "__main__":
    main()
