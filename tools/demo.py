"""`make demo`: a small GPT, planned, run for three steps beside the original, and compared.

Runs on eight host devices. `JAX_PLATFORMS=cuda python -m tools.demo` takes the GPUs at hand.
"""

from __future__ import annotations

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from rich.console import Console

import partita as pt
from partita import models
from partita.cli.output import show, width
from partita.report.plan import view
from partita.report.progress import progress_bar
from partita.verify import compare

STEPS = 3


def mesh_of(devices: int) -> str:
    """Two devices beside each other for the model, where they come in pairs."""
    beside = 1 if devices % 2 else 2
    return f"data={devices // beside},model={beside}"


def main() -> int:
    """Prints the plan, the largest difference, and predicted beside compiled collectives."""
    console = Console()
    jax.config.update("jax_default_matmul_precision", "highest")  # so that GPUs compute in float32
    model = models.build("gpt-tiny", dtype="float32")
    with progress_bar(console) as progress:
        plan = pt.plan(
            model.fn,
            *model.args,
            mesh=mesh_of(jax.device_count()),
            donate_argnums=model.donate_argnums,
            tactics=[
                pt.ManualPartition({"batch*": 0}, axis="data"),
                pt.AutomaticPartition(axes=["model"]),
            ],
            progress=progress,
        )
    show(view(plan.done, width()))
    assert model.example is not None
    difference = _largest_difference(plan, model)
    console.print(
        f"\nlargest difference after {STEPS} steps, over losses and state: {difference:.3g}"
    )
    args = plan.shard(*model.example(0))
    comparison = compare(plan.collectives, plan.mesh, plan.jit().lower(*args).compile().as_text())
    console.print("\nCollectives, predicted beside compiled:")
    console.print(str(comparison))
    same = "equal" if comparison.equal else "NOT equal"
    console.print(f"predicted and compiled are {same} in kind, count, bytes and groups")
    return 0 if comparison.equal and difference < 1e-4 else 1


def _largest_difference(plan: pt.Plan, model: models.Model) -> float:
    """Runs the original and the partitioned step side by side."""
    assert model.example is not None
    state, batch = model.example(0)
    ours, ours_batch = plan.shard(*model.example(0))
    original, partitioned = jax.jit(model.fn), plan.jit()
    largest = 0.0
    for _ in range(STEPS):
        state, loss = original(state, batch)
        ours, our_loss = partitioned(ours, ours_batch)
        pairs = zip(jax.tree.leaves((state, loss)), jax.tree.leaves((ours, our_loss)), strict=True)
        largest = max(largest, *(float(jnp.max(jnp.abs(a - jax.device_get(b)))) for a, b in pairs))
    return largest


if __name__ == "__main__":
    raise SystemExit(main())
