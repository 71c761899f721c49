"""Losses that torch has as one operation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from partita.torch.operations.registry import aten
from partita.torch.operations.types import wide

_NONE, _MEAN, _SUM = 0, 1, 2


def _picked(logits: Any, target: Any, ignored: int) -> tuple[Any, Any]:
    """The element of each row that a target names, and whether it counts."""
    counts = target != ignored
    safe = jnp.expand_dims(jnp.where(counts, target, 0), 1)
    rows = jnp.take_along_axis(logits, safe, 1)
    return jnp.squeeze(rows, 1), counts


def _reduced(losses: Any, reduction: int, count: Any) -> Any:
    """Losses as they are, their sum, or that over a count."""
    if reduction == _NONE:
        return losses
    total = jnp.sum(losses)
    return total if reduction == _SUM else total / count


@aten("cross_entropy_loss")
def _cross_entropy(
    logits: Any,
    target: Any,
    weight: Any = None,
    reduction: int = _MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    if label_smoothing or weight is not None:
        raise NotImplementedError("cross_entropy with class weights or label smoothing")
    if logits.ndim == 1:
        logits, target = logits[None], target[None] if target.ndim == 0 else target
    logs = jax.nn.log_softmax(wide(logits), 1)
    if jnp.issubdtype(target.dtype, jnp.floating):  # probabilities
        losses = -jnp.sum(logs * target, 1)
        counts = jnp.ones(losses.shape, bool)
    else:
        picked, counts = _picked(logs, target, ignore_index)
        losses = jnp.where(counts, -picked, 0)
    return _reduced(losses, reduction, jnp.sum(counts.astype(losses.dtype)))


@aten("mse_loss")
def _mse_loss(a: Any, b: Any, reduction: int = _MEAN) -> Any:
    losses = jnp.square(a - b)
    if reduction == _NONE:
        return losses
    return jnp.sum(losses) if reduction == _SUM else jnp.mean(losses)
