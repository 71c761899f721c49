"""A random program, partitioned, beside the original: same numbers, the collectives predicted."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from functools import cached_property
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import partita as pt
from fuzzing.elements import KEYS
from fuzzing.pool import COMPLEX, FOUR_BITS, REAL
from fuzzing.programs import Program, Schedule, mesh_of, tactics
from partita.analysis import Analysis, analyse
from partita.cost import load
from partita.emit.spmd import emit
from partita.frontend.trace import trace
from partita.planning import prepare
from partita.program import Program as Imported
from partita.program.ir import bits
from partita.spmd import Collective
from partita.stablehlo import mlir
from partita.stablehlo.internals import jax_mlir
from partita.stablehlo.versions import compiler_options
from partita.verify import compare


class WrongNumbersError(AssertionError):
    """A partitioned program gives other numbers than the original."""


class WrongCollectivesError(AssertionError):
    """A compiled program exchanges other data than was predicted."""


class NotRunError(Exception):
    """XLA does not run a program as it is, before partita has touched it."""


class Checker:
    """Checks schedules of one program, which is traced, analysed and run by itself once.

    Of every `core_every`th schedule the loop nests are run, too.
    """

    def __init__(self, program: Program, core_every: int = 1) -> None:
        self.program = program
        self.core_every = core_every
        self.checked = 0
        self.args = program.arguments()
        self._context = functools.cache(jax_mlir.make_ir_context)
        with self._one_context():
            self.traced = trace(program.fn, (self.args,), {})
        self._window = int(load("cpu").regather_window.value)
        self.analysis = analyse(self.traced.program, self._window)
        self._seen: set[str] = set()
        self.loose = self.simplified = self.skipped = 0
        """How often rounding, or XLA's simplifications, kept a comparison from being strict; how
        often a schedule came to the program of an earlier one."""

    def _one_context(self) -> Any:
        """Has all modules made in one MLIR context: making contexts would take a fifth of all."""
        return mock.patch.object(jax_mlir, "make_ir_context", self._context)

    @property
    def worth(self) -> int:
        """How many schedules it is worth: large programs take long, and fail no more often."""
        return 6 if len(self.traced.program.operations) <= 100 else 1

    @cached_property
    def original(self) -> list[np.ndarray]:
        """The results of the program as it is."""
        with self._one_context():
            lowered = jax.jit(self.program.fn).lower(self.args)
        try:
            return _numbers(_compile(lowered)(self.args))
        except jax.errors.JaxRuntimeError as error:
            raise NotRunError(str(error)) from error

    @cached_property
    def _weak(self) -> list[bool]:
        return _weak_types(jax.eval_shape(self.program.fn, self.args))

    def plan(self, schedule: Schedule) -> pt.Plan:
        """A plan for this schedule, from the one tracing."""
        planned = prepare.rewritten(self.traced.program, pt.Mesh.of(mesh_of(schedule)))
        groups = self._analyse(planned, self._window).groups.conflict_groups
        roles = max((len(roles) for roles in groups), default=0)
        with (
            mock.patch.object(prepare, "trace", return_value=self.traced),
            mock.patch.object(prepare, "analyse", self._analyse),
        ):
            return pt.plan(
                self.program.fn,
                self.args,
                mesh=mesh_of(schedule),
                hardware="cpu",
                tactics=tactics(self.program, schedule, roles),
            )

    def _analyse(self, program: Imported, regather_window: int) -> Analysis:
        """The one analysis, unless the program has been rewritten for a mesh."""
        same = program is self.traced.program
        return self.analysis if same else analyse(program, regather_window)

    def prove(self, schedule: Schedule) -> pt.Plan | None:
        """Plans and proves, which takes a fraction of the time that compiling and running take.

        Returns:
          The plan; None if an earlier schedule came to the same program.

        Raises:
          LoweringError: it is not proven to compute what the original does; the message says
            whether it does, when it runs.
        """
        plan = self.plan(schedule)
        try:
            text = str(plan.spmd)
        except pt.PartitaError as error:
            raise type(error)(f"{error}\n{self._unproven(schedule)}") from error
        if text in self._seen:
            self.skipped += 1
            return None
        self._seen.add(text)
        with mlir.context():
            emit(plan.spmd)
        return plan

    def _unproven(self, schedule: Schedule) -> str:
        """What becomes of a plan that is not proven, when it runs all the same."""
        with mock.patch("partita.planning.schedule.validate"):
            try:
                self.check(schedule)
            except Exception as error:
                return f"It is wrong: {type(error).__name__}: {str(error)[:1000]}"
        return "Its numbers are right."

    def check(self, schedule: Schedule) -> None:
        """Plans, compiles, runs and compares; schedules that come to one program, once.

        Raises:
          WrongNumbersError, WrongCollectivesError: they differ.
        """
        plan = self.prove(schedule)
        if plan is None:
            return
        placed = jax.tree.map(_callable_with, plan.shard(self.args), (self.args,))
        with self._one_context():
            lowered = plan.jit().lower(*placed)
        compiled = _compile(lowered)
        results = compiled(*placed)
        self._compare_numbers(_numbers(results))
        if _weak_types(results) != self._weak:
            raise WrongNumbersError(f"weak types: {_weak_types(results)}")
        self._compare_collectives(plan, lowered, compiled.as_text())
        if self.checked % self.core_every == 0:
            self._check_core(plan)
        self.checked += 1

    def _check_core(self, plan: pt.Plan) -> None:
        """Runs the plan's loop nests, which share nothing of its lowering, on one device."""
        with self._one_context():
            lowered = plan.core.jitted.lower(self.args)
        self._compare_numbers(_numbers(_compile(lowered)(self.args)), "by its loops, ")

    def _compare_numbers(self, made: list[np.ndarray], how: str = "") -> None:
        errors = self.program.errors(made)
        for number, (mine, theirs, error) in enumerate(
            zip(made, self.original, errors, strict=True)
        ):
            if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
                raise WrongNumbersError(f"{how}result {number}: {mine.dtype} {theirs.dtype}")
            apart = _distance(mine, theirs)
            if apart > error and not self._loose(number, error):
                raise WrongNumbersError(
                    f"{how}result {number}: {apart:.3g} apart, allowed {error:.3g}\n"
                    f"{mine}\n{theirs}"
                )

    def _compare_collectives(self, plan: pt.Plan, lowered: Any, text: str) -> None:
        """The compiled program has the collectives predicted, but for those that XLA saw through.

        XLA drops a collective whose result nothing needs or that is there twice. Then what XLA
        was given must have just the collectives predicted, and what it made of that none besides.
        """
        done = compare(_widened(plan.collectives, 4), plan.mesh, text)
        if done.equal:
            return
        self.simplified += 1
        given = compare(plan.collectives, plan.mesh, lowered.compiler_ir("hlo").as_hlo_text())
        for bytes_ in (1, 2):
            done.predicted.update(
                compare(_widened(plan.collectives, bytes_), plan.mesh, text).predicted
            )
        if not given.equal or done.compiled - done.predicted:
            raise WrongCollectivesError(f"\ngiven:\n{given}\ncompiled:\n{done}\n{plan.spmd}")

    def _loose(self, number: int, error: float) -> bool:
        """Whether rounding alone moves a result that far: nothing can be said about it then.

        Asked of other evaluations of the original: operation by operation, and of arguments
        that differ in the last places.
        """
        self.loose += 1
        return any(
            _distance(other[number], self.original[number]) > 0.1 * error for other in self.others
        )

    @cached_property
    def others(self) -> list[list[np.ndarray]]:
        """Other evaluations of the original, that rounding alone sets apart."""
        with jax.disable_jit():
            found = [_numbers(self.program.fn(self.args))]
        compiled = _compile(jax.jit(self.program.fn).lower(self.args))
        for seed in range(3):
            found.append(_numbers(compiled(_shaken(self.args, seed))))
        return found


def _callable_with(placed: Any, given: Any) -> Any:
    """An argument as what JAX compiled ahead of time takes: of 4 bits, not as it lies on devices.

    Without partita, too: `jax.jit(f).lower(x).compile()(jax.device_put(x))` fails.
    """
    return given if getattr(given, "dtype", None) in FOUR_BITS else placed


def _weak_types(results: Any) -> list[bool]:
    """Which results give way to the types of what they meet."""
    return [bool(getattr(leaf, "weak_type", False)) for leaf in jax.tree.leaves(results)]


def _compile(lowered: Any) -> Any:
    """Compiles with XLA's older code generator, which takes half the time.

    But it gets some fused scatters wrong: these are left to the newer one.
    """
    new = "stablehlo.scatter" in lowered.as_text()
    return lowered.compile(compiler_options=compiler_options({"xla_cpu_use_fusion_emitters": new}))


def _widened(collectives: Iterable[Collective], least: int) -> list[Collective]:
    """Collectives as they are on CPUs, which mostly widen narrow floats to 4 bytes."""

    def widened(c: Collective) -> int:
        width = 8 * (least if c.dtype.startswith(("f", "bf")) else 1)
        return c.bytes * max(1, width // bits(c.dtype))

    return [dataclasses.replace(c, bytes=widened(c)) for c in collectives]


def _shaken(args: dict[str, Any], seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)

    def shake(leaf: Any) -> Any:
        if isinstance(leaf, int | float) or leaf.dtype in KEYS:
            return leaf
        if leaf.dtype not in {*REAL, COMPLEX}:
            return leaf
        last = float(jnp.finfo(leaf.dtype).eps)
        return (leaf * (1 + last * rng.choice([-1, 0, 1], leaf.shape))).astype(leaf.dtype)

    return {name: shake(leaf) for name, leaf in args.items()}


def _numbers(results: Any) -> list[np.ndarray]:
    """The results as arrays that numpy can compare."""
    found = []
    for leaf in jax.tree.leaves(results):
        is_key = getattr(leaf, "dtype", None) in KEYS  # a Python scalar has no type
        array = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        small = jnp.issubdtype(array.dtype, jnp.floating) and array.dtype.itemsize < 4
        found.append(array.astype(np.float32) if small else array)
    return found


def _distance(mine: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference, relative to the largest number that is finite, or to one."""
    if mine.dtype == bool or jnp.issubdtype(mine.dtype, jnp.integer):
        return 0.0 if np.array_equal(mine, theirs) else np.inf
    finite = np.isfinite(theirs)
    if not np.array_equal(np.isfinite(mine), finite):
        return np.inf
    # A sum that is multiplied before it has been added up: 3 inf - 1 inf is no number, 2 inf is.
    rest = ~finite & ~(np.isnan(mine) & ~np.isnan(theirs))
    if not np.array_equal(mine[rest], theirs[rest], equal_nan=True):
        return np.inf
    scale = max(1.0, float(np.max(np.abs(theirs[finite]), initial=0.0)))
    return float(np.max(np.abs(mine[finite] - theirs[finite]), initial=0.0)) / scale
