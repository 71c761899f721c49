"""Optimizers of torch, with torch's defaults: what they keep for a parameter, and its update."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import torch

from partita.errors import OptionError, closest

State = dict[str, Any]
Update = Callable[[Any, Any, State, Any, Mapping[str, Any]], tuple[Any, State]]
"""Function from a parameter, its gradient, its state, the step's number and options to new ones.

It returns the new parameter and the new state.
"""


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optimizer: what it keeps for each parameter, shaped as that, and one update."""

    name: str
    update: Update
    keeps: Callable[[Mapping[str, Any]], tuple[str, ...]]
    """The names of what it keeps for each parameter."""
    options: Mapping[str, Any]

    @property
    def state(self) -> tuple[str, ...]:
        """Names, as in torch, of the state that it keeps for each parameter."""
        return self.keeps(self.options)


def _adam(p: Any, g: Any, state: State, step: Any, options: Mapping[str, Any]) -> tuple[Any, State]:
    decay, rate = options["weight_decay"], options["lr"]
    if decay and options.get("decoupled_weight_decay"):
        p = p * (1 - rate * decay)
    elif decay:
        g = g + decay * p
    first, second = options["betas"]
    mean = state["exp_avg"] + (1 - first) * (g - state["exp_avg"])
    square = second * state["exp_avg_sq"] + (1 - second) * g * g
    new = {"exp_avg": mean, "exp_avg_sq": square}
    most = square
    if options.get("amsgrad"):
        most = new["max_exp_avg_sq"] = jnp.maximum(state["max_exp_avg_sq"], square)
    size = rate / (1 - first**step)
    root = jnp.sqrt(most) / jnp.sqrt(1 - second**step) + options["eps"]
    return p - size * mean / root, new


def _adam_keeps(options: Mapping[str, Any]) -> tuple[str, ...]:
    more = ("max_exp_avg_sq",) if options.get("amsgrad") else ()
    return ("exp_avg", "exp_avg_sq", *more)


def _sgd(p: Any, g: Any, state: State, step: Any, options: Mapping[str, Any]) -> tuple[Any, State]:
    g = g + options["weight_decay"] * p if options["weight_decay"] else g
    momentum = options["momentum"]
    if not momentum:
        return p - options["lr"] * g, {}
    damped = jnp.where(step == 1, 1.0, 1 - options["dampening"])
    buffer = momentum * state["momentum_buffer"] + damped * g
    moved = g + momentum * buffer if options["nesterov"] else buffer
    return p - options["lr"] * moved, {"momentum_buffer": buffer}


def _sgd_keeps(options: Mapping[str, Any]) -> tuple[str, ...]:
    return ("momentum_buffer",) if options["momentum"] else ()


_KINDS: dict[str, tuple[type[torch.optim.Optimizer], Update, Callable[..., tuple[str, ...]]]] = {
    "adamw": (torch.optim.AdamW, _adam, _adam_keeps),
    "adam": (torch.optim.Adam, _adam, _adam_keeps),
    "sgd": (torch.optim.SGD, _sgd, _sgd_keeps),
}


def optimizer_of(given: Any) -> Optimizer:
    """The optimizer that a name, a class of `torch.optim` or an instance of one stands for.

    An instance gives its options, which are those of its first group of parameters.

    Raises:
      OptionError: it is none of those that are known.
    """
    for name, (class_, update, keeps) in _KINDS.items():
        if given == name or given is class_:
            options = class_([torch.nn.Parameter(torch.zeros(1))]).param_groups[0]
            return Optimizer(name, update, keeps, dict(options))
        if type(given) is class_:
            return Optimizer(name, update, keeps, dict(given.param_groups[0]))
    said = given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)
    raise OptionError(
        f"optimizer={said!r} is not known{closest(str(said).lower(), _KINDS)}; known are "
        f"{', '.join(map(repr, _KINDS))}, and AdamW, Adam and SGD of torch.optim"
    )
