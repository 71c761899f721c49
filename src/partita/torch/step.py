"""Functions to plan for a captured module: its forward, or a whole step of training.

A step is what a loop of torch does: `loss.backward()`, `optimizer.step()`, and what the module
changes itself (the running averages of batch norms).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from partita.errors import OptionError
from partita.program.ir import Program, Roles
from partita.torch.capture import Captured, Tensor
from partita.torch.interpret import Interpreter
from partita.torch.operations.types import jax_type
from partita.torch.optimizers import Optimizer

UPDATED = "updated"
"""First part of the names of results that are new parameters, buffers and optimizer state."""


@dataclasses.dataclass(frozen=True)
class Step:
    """A function of JAX with abstract arguments, and what torch calls its arguments and results."""

    fn: Callable[..., Any]
    """Function of five tuples: trained parameters, the others, buffers, optimizer state, inputs."""
    args: tuple[Any, ...]
    argument_names: tuple[str, ...]
    result_names: tuple[str, ...]
    parameters: frozenset[str]
    """Names of arguments and results."""
    optimizer: frozenset[str]
    inputs: frozenset[str]
    donate: tuple[int, ...]

    def named(self, program: Program) -> Program:
        """The program that was traced of it, with the names of torch."""
        arguments = dict(zip(self.argument_names, program.arguments, strict=True))
        results = dict(zip(self.result_names, program.results, strict=True))
        every = [*arguments.items(), *results.items()]
        kinds = (self.parameters, self.optimizer, self.inputs)
        roles = Roles(*(frozenset(v for name, v in every if name in kind) for kind in kinds))
        return dataclasses.replace(
            program,
            argument_names=self.argument_names,
            result_names=self.result_names,
            roles=roles,
        )


def forward(captured: Captured) -> Step:
    """The module as it is called."""
    return _step(captured, None)


def training(captured: Captured, optimizer: Optimizer | None) -> Step:
    """The module's loss, its gradients, and the update by an optimizer; gradients only without.

    Raises:
      OptionError: the loss is no single number, or nothing is trained.
    """
    shapes = {name: node.meta["val"].shape for name, node in captured.outputs.items()}
    if len(shapes) != 1 or tuple(*shapes.values()) != ():
        shown = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise OptionError(f"loss= has to return one number, and makes {shown}")
    if not captured.trainable:
        raise OptionError(f"no parameter of {captured.name} that its loss reads is trained")
    return _step(captured, optimizer, trains=True)


def _step(captured: Captured, optimizer: Optimizer | None, trains: bool = False) -> Step:
    rows = list(captured.parameters.items())
    trained = [(at, t) for at, t in rows if trains and t.name in captured.trainable]
    others = [(at, t) for at, t in rows if not (trains and t.name in captured.trainable)]
    buffers, inputs = list(captured.buffers.items()), list(captured.inputs.items())
    kept = optimizer.state if optimizer else ()
    state = [Tensor(f"optimizer.{k}.{t.name}", t.shape, t.dtype) for _, t in trained for k in kept]
    places = [[at for at, _ in group] for group in (trained, others, buffers, inputs)]
    run = _Run(Interpreter(captured), places, kept, optimizer)
    tuples = [[t for _, t in trained], [t for _, t in others], [t for _, t in buffers], state]
    arguments = [tuple(map(_abstract, group)) for group in tuples]
    names = [[t.name for t in group] for group in tuples]
    if optimizer:
        arguments[3] = (*arguments[3], jax.ShapeDtypeStruct((), jnp.float32))
        names[3].append("optimizer.step")
    args = (*arguments, tuple(_abstract(t) for _, t in inputs))
    names.append([t.name for _, t in inputs])
    mutated = [f"{UPDATED}.{name}" for name in captured.mutated]
    if trains:
        new = names[0] if optimizer else [f"gradient.{name}" for name in names[0]]
        prefix = f"{UPDATED}." if optimizer else ""
        results = ["loss", *(prefix + name for name in new), *(f"{UPDATED}.{n}" for n in names[3])]
    else:
        results = list(captured.outputs)
    parameters = {*names[0], *names[1], *(f"{UPDATED}.{n}" for n in names[0])}
    optimized = {*names[3], *(f"{UPDATED}.{n}" for n in names[3])}
    scalars = {"optimizer.step", f"{UPDATED}.optimizer.step"}
    fn = run.train if trains else run.forward
    return Step(
        _named(fn, captured.name),
        args,
        tuple(name for group in names for name in group),
        (*results, *mutated),
        frozenset(parameters),
        frozenset(optimized - scalars),
        frozenset(names[4]),
        ((0, 2, 3) if mutated else (0, 3)) if trains and optimizer else (),
    )


def _named(fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(fn)
    def step(*args: Any) -> Any:
        return fn(*args)

    step.__name__ = name
    return step


def _abstract(tensor: Tensor) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tensor.shape, jax_type(tensor.dtype))


@dataclasses.dataclass(frozen=True)
class _Run:
    """Computation of the step."""

    interpreter: Interpreter
    places: Sequence[Sequence[str]]
    """The inputs of the graph: trained parameters, other ones, buffers, inputs."""
    kept: tuple[str, ...]
    optimizer: Optimizer | None

    def _called(self, *groups: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        pairs = (zip(at, group, strict=True) for at, group in zip(self.places, groups, strict=True))
        return self.interpreter({name: value for rows in pairs for name, value in rows})

    def forward(self, trained: Any, others: Any, buffers: Any, state: Any, inputs: Any) -> Any:
        """Outputs, and the buffers that change."""
        outputs, mutated = self._called(trained, others, buffers, inputs)
        return tuple(outputs.values()), tuple(mutated.values())

    def train(self, trained: Any, others: Any, buffers: Any, state: Any, inputs: Any) -> Any:
        """The loss, new parameters or gradients, new state, and the buffers that change."""

        def loss_of(parameters: Any) -> Any:
            outputs, mutated = self._called(parameters, others, buffers, inputs)
            (loss,) = outputs.values()
            return loss, tuple(mutated.values())

        (loss, mutated), gradients = jax.value_and_grad(loss_of, has_aux=True)(trained)
        if self.optimizer is None:
            return loss, gradients, (), mutated
        *held, step = state
        step, width = step + 1, len(self.kept)
        new, states = [], []
        for number, (p, g) in enumerate(zip(trained, gradients, strict=True)):
            own = dict(zip(self.kept, held[number * width : (number + 1) * width], strict=True))
            p_new, own = self.optimizer.update(p, g, own, step, self.optimizer.options)
            new.append(p_new.astype(p.dtype))
            states += [own[k].astype(p.dtype) for k in self.kept]
        return loss, tuple(new), (*states, step), mutated
