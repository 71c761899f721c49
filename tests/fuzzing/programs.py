"""Whole programs, schedules for them, and arguments."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

import partita as pt
from fuzzing.blocks import grow
from fuzzing.control import KINDS, total
from fuzzing.elements import KEYS
from fuzzing.pool import (
    BF16,
    BOOL,
    COMPLEX,
    F16,
    FLOAT,
    INT,
    REAL,
    SMALL,
    SMALL_WHOLE,
    WHOLE,
    Pool,
    Step,
    Value,
    needed,
)
from partita.decisions import NOWHERE, DecisionGroup, ShardClass, Stage
from partita.tactics import Outcome
from partita.tiling import Propagator, assignment

MESHES = ("x=2,y=4", "x=2,y=2", "x=2,y=2,z=2", "x=8", "x=3,y=2", "x=3", "x=5")
SPECIAL = 8  # one program in so many gets arguments that are no numbers, or infinite
MOST_TACTICS, MOST_WISHES = 3, 3
MOST_LOCAL = 30  # local actions of a schedule

Request = tuple[Value | str, Any]
"""An argument, or a pattern of results, and a dimension of it, or several, or "replicate"."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A mesh and tactics; those by hand as (requests, axis, resolve)."""

    mesh: str
    manual: tuple[tuple[tuple[Request, ...], str, int | None], ...]
    search: int | None = None
    """Seed of a search that follows them."""
    devices: int = 0
    """Seed of the devices of the mesh, in any order; 0 for the first ones, as JAX has them."""
    local: int | None = None
    """Seed of local actions that come last."""

    def __str__(self) -> str:
        lines = [f"mesh {self.mesh}" + (f" of devices {self.devices}" if self.devices else "")]
        for requests, axis, resolve in self.manual:
            text = ", ".join(f"{what}: {dims}" for what, dims in requests)
            lines.append(f"  tactic: {text} -> {axis}, resolve {resolve}")
        if self.search is not None:
            lines.append(f"  tactic: search with seed {self.search}")
        if self.local is not None:
            lines.append(f"  tactic: local actions with seed {self.local}")
        return "\n".join(lines)


def mesh_of(schedule: Schedule) -> Any:
    """The mesh, as `plan` takes it."""
    if not schedule.devices:
        return schedule.mesh
    rng = random.Random(f"devices {schedule.devices}")
    axes = dict(part.split("=") for part in schedule.mesh.split(","))
    sizes = [int(size) for size in axes.values()]
    devices = rng.sample(jax.devices(), int(np.prod(sizes)))
    types = (rng.choice([AxisType.Auto, AxisType.Explicit]),) * len(axes)
    return jax.sharding.Mesh(np.array(devices).reshape(sizes), tuple(axes), axis_types=types)


class Program:
    """A random program: a pool, what it returns, and whether that is differentiated."""

    def __init__(self, pool: Pool, results: Sequence[Value], gradient: bool, seed: int) -> None:
        self.pool = pool
        self.results = list(results)
        self.gradient = gradient
        self.seed = seed

    @property
    def steps(self) -> list[Step]:
        """Those that the results need."""
        return needed(self.pool.steps, self.results)

    def names(self) -> dict[Value, str]:
        """Names of the arguments."""
        return {v: f"a{i}" for i, v in enumerate(self.pool.arguments)}

    def fn(self, args: dict[str, Any]) -> Any:
        """The function; takes the arguments by name."""
        names = self.names()
        if not self.gradient:
            return self.pool.run([args[names[v]] for v in self.pool.arguments], self.results)
        floats = {names[v]: args[names[v]] for v in self.pool.arguments if v.dtype in REAL}

        def loss(weights):
            values = [{**args, **weights}[names[v]] for v in self.pool.arguments]
            return total(self.pool.run(values, self.results))

        return jax.value_and_grad(loss)(floats)

    @property
    def error(self) -> float:
        """How far results may differ: as far as anything that goes into them."""
        values = [v for step in self.steps for v in step.outputs] + self.results
        return max(v.error for v in [*values, *self.pool.arguments])

    def errors(self, made: Sequence[Any]) -> list[float]:
        """The same for each result."""
        if self.gradient:
            return [max(self.error, 1e-4)] * len(made)
        return [v.error for v in self.results]

    @property
    def special(self) -> bool:
        """Whether some of its arguments are no numbers, or infinite.

        Not those of convolutions: whether a window multiplies the zeros between dilated elements,
        which makes NaN of infinities, is up to the compiler.
        """
        steps = "\n".join(self.pool.show(self.names()))
        return self.seed % SPECIAL == 0 and "convolution" not in steps

    def arguments(self, seed: int = 0) -> dict[str, Any]:
        """Example arguments."""
        rng = np.random.default_rng(self.seed + seed)
        args = {name: _example(v.type, rng) for v, name in self.names().items()}
        return {name: _with_special(a, rng) for name, a in args.items()} if self.special else args

    def __str__(self) -> str:
        names: dict[Value, str] = self.names()
        pool = Pool(self.pool.rng, self.pool.arguments)
        pool.steps = self.steps
        lines = pool.show(names)
        ending = "gradient of" if self.gradient else "return"
        return "\n".join([*lines, f"{ending} {', '.join(names[v] for v in self.results)}"])


def _example(type_: Any, rng: np.random.Generator) -> Any:
    if type_.weak_type:
        number = int(rng.integers(-9, 18))
        return number / 2 if type_.dtype == FLOAT else number
    if type_.dtype in KEYS:
        words = rng.integers(0, 2**32, (*type_.shape, 2), dtype=np.uint32)
        return jax.random.wrap_key_data(jnp.asarray(words))
    if type_.dtype == BOOL:
        return rng.integers(0, 2, type_.shape).astype(bool)
    if type_.dtype in SMALL_WHOLE:
        low = -8 if jnp.issubdtype(type_.dtype, jnp.signedinteger) else 0
        return rng.integers(low, low + 16, type_.shape).astype(type_.dtype)
    if type_.dtype in WHOLE:
        low = -9 if np.issubdtype(type_.dtype, np.signedinteger) else 0
        return rng.integers(low, 18, type_.shape).astype(type_.dtype)
    if type_.dtype == COMPLEX:
        return (rng.standard_normal(type_.shape) + 1j * rng.standard_normal(type_.shape)).astype(
            np.complex64
        )
    made = np.asarray(rng.standard_normal(type_.shape))
    return (np.abs(made) if type_.dtype == np.dtype(jnp.float8_e8m0fnu) else made).astype(
        type_.dtype
    )


def _with_special(array: Any, rng: np.random.Generator) -> Any:
    """With a few elements that are no numbers, or infinite; Python's scalars as they are."""
    if getattr(array, "dtype", None) not in REAL:
        return array
    places = rng.random(array.shape) < 0.03
    kinds = rng.choice([np.nan, np.nan, np.inf, -np.inf], array.shape)
    return np.where(places, kinds, array.astype(np.float32)).astype(array.dtype)


def program(seed: int) -> Program:
    """The program of this number, always the same."""
    rng = random.Random(f"program {seed}")
    sizes = (4, 8, 8, 16, 2, 6, 6, 3, 5, 10, 12)
    arguments = []

    def argument(dtype: Any, least: int, most: int) -> None:
        shape = tuple(rng.choice(sizes) for _ in range(rng.randint(least, most)))
        if np.prod(shape, dtype=int) <= 1024:
            arguments.append(Value(jax.ShapeDtypeStruct(shape, dtype)))

    for _ in range(rng.randint(1, 3)):
        argument(rng.choice((FLOAT,) * 7 + (BF16, BF16, F16)), 1, 3)
    if rng.random() < 0.6:
        shape = rng.choice([(8, 8), (4, 8, 8), (2, 4, 4), (8, 8), (4, 4, 4, 4), (8, 4, 6, 6)])
        arguments.append(Value(jax.ShapeDtypeStruct(shape, FLOAT)))
    for _ in range(rng.randint(1, 2)):
        argument(INT if rng.random() < 0.7 else rng.choice(sorted(WHOLE, key=str)), 0, 2)
    some = rng.choice(SMALL)
    for dtype, chance in ((COMPLEX, 0.12), (BOOL, 0.2), (some, 0.3), (KEYS[0], 0.25)):
        if rng.random() < chance:
            argument(dtype, 0, 1 if dtype == KEYS[0] else 2)
    pool = Pool(rng, arguments)
    pool.kinds = KINDS
    grow(pool, rng.randint(1, 7))
    _scale(pool, random.Random(f"scalars {seed}"))
    used = {v for step in pool.steps for v in step.inputs}
    made = [v for step in pool.steps for v in step.outputs]
    results = [v for v in made if v not in used or rng.random() < 0.15] or pool.values[:1]
    found = Program(pool, results, rng.random() < 0.25, seed)
    if found.gradient:
        found.gradient = _has_gradient(found)
    return found


def _scale(pool: Pool, rng: random.Random) -> None:
    """Has some values of some programs meet a Python scalar, whose type gives way to theirs."""
    if rng.random() > 0.2:
        return
    dtype = rng.choice([FLOAT, INT])
    scalar = Value(jax.ShapeDtypeStruct((), dtype, weak_type=True))
    pool.arguments.append(scalar)
    suitable = [v for v in pool.values if v.dtype in REAL | WHOLE]
    for value in rng.sample(suitable, min(len(suitable), rng.randint(0, 2))):
        pool.add("times a Python scalar", lambda x, s: x * s, value, scalar)
    pool.add("a Python scalar plus one", lambda s: s + 1, scalar)


def _has_gradient(found: Program) -> bool:
    """Whether JAX can differentiate it: loops of unknown length, say, it cannot."""
    values = {name: v.type for v, name in found.names().items()}
    try:
        jax.eval_shape(found.fn, values)
    except (ValueError, TypeError, NotImplementedError):
        return False
    return any(v.dtype in REAL for v in found.pool.arguments)


def schedules(found: Program, count: int) -> list[Schedule]:
    """So many schedules for a program; every second one is a search."""
    rng = random.Random(f"schedules {found.seed}")
    made = [_schedule(found, rng, searched=number % 2 == 1) for number in range(count)]
    other = random.Random(f"devices {found.seed}")
    made = [
        dataclasses.replace(each, devices=other.randint(1, 99)) if other.random() < 0.3 else each
        for each in made
    ]
    local = random.Random(f"local {found.seed}")
    return [
        dataclasses.replace(each, local=local.randint(1, 99)) if local.random() < 0.4 else each
        for each in made
    ]


def _schedule(found: Program, rng: random.Random, searched: bool) -> Schedule:
    sizes = {size for v in found.pool.arguments for size in v.shape}
    mesh = rng.choice([m for m in MESHES if _divides(m, sizes)] or MESHES)
    axes = [part.partition("=")[0] for part in mesh.split(",")]
    if searched:
        return Schedule(mesh, (), rng.randint(0, 9))
    manual = []
    for _ in range(rng.randint(1, MOST_TACTICS)):
        requests = tuple(_wish(found, rng) for _ in range(rng.randint(1, MOST_WISHES)))
        manual.append((requests, rng.choice(axes), rng.choice([None, 0, 1])))
    search = rng.randint(0, 9) if rng.random() < 0.15 else None
    return Schedule(mesh, tuple(manual), search)


def _divides(mesh: str, sizes: set[int]) -> bool:
    """Whether an axis of a mesh divides one of these sizes."""
    axes = [int(part.partition("=")[2]) for part in mesh.split(",")]
    return any(size % axis == 0 for axis in axes for size in sizes)


def _wish(found: Program, rng: random.Random) -> Request:
    shaped = [v for v in found.pool.arguments if v.ndim]
    if not shaped or rng.random() < 0.2:
        return "result*", [rng.randint(0, 2)]
    value = rng.choice(shaped)
    return value, rng.choice([*range(value.ndim), *range(value.ndim), "replicate"])


def tactics(found: Program, schedule: Schedule, roles: int) -> list[Any]:
    """A schedule as partita's tactics; conflicts of the program have at most so many roles."""
    names, made = found.names(), []
    for requests, axis, resolve in schedule.manual:
        patterns = {
            what if isinstance(what, str) else f"args['{names[what]}']": dims
            for what, dims in requests
            if isinstance(what, str) or what in names  # its argument may have been taken away
        }
        resolve = None if resolve is None or not roles else min(resolve, roles - 1)
        made.append(pt.ManualPartition(patterns, axis, resolve))
    if schedule.search is not None:
        made.append(pt.AutomaticPartition(budget=20, seed=schedule.search))
    if schedule.local is not None:
        made.append(LocalActions(schedule.local))
    return made


@dataclasses.dataclass(frozen=True)
class LocalActions:
    """Axes of single classes put anywhere, as the end of a search may do."""

    seed: int
    name: str = "LocalActions"

    def apply(self, stage: Stage) -> Outcome:
        """Takes some random local actions, those that are possible."""
        context, rng = stage.context, random.Random(f"local actions {self.seed}")
        graph, tiling = stage.folded
        propagator = Propagator(graph, context.mesh, context.analysis.groups.conflict_groups)
        rows = {"op": (graph.ops, tiling.ops), "value": (graph.values, tiling.values)}
        actions = []
        for _ in range(rng.randint(1, MOST_LOCAL)):
            kind = rng.choice(["op", "op", "value"])
            classes, layouts = rows[kind]
            found = rng.choice([c for c in classes if layouts[c.index]] or [None])
            if found is None:
                continue
            place = rng.randint(NOWHERE, len(layouts[found.index]) - 1)
            axis = rng.randrange(len(context.mesh.names))
            action = ShardClass(kind, found.members[0], axis, place)
            actions.append(action)
            tiling = action.take(propagator, tiling).tiling
        return Outcome(assignment(graph, tiling), decided=(DecisionGroup(tuple(actions)),))
