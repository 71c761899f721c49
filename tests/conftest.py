"""Test setup: eight CPU devices, chosen before anything imports jax."""

import os
from pathlib import Path

OURS = (
    "--xla_force_host_platform_device_count=8",
    # Compiling takes most of the time of these tests; collectives and donation do not depend on it.
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
)

flags = os.environ.get("XLA_FLAGS", "").split()
os.environ["XLA_FLAGS"] = " ".join([*(f for f in flags if f not in OURS), *OURS])
os.environ["JAX_PLATFORMS"] = "cpu"
# What one worker has compiled, or an earlier run, no other compiles again.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# Only now, with the devices chosen, may anything import jax.
import functools  # noqa: E402
import re  # noqa: E402

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import pytest  # noqa: E402

import partita as pt  # noqa: E402
from partita import models  # noqa: E402
from partita.analysis import Between, analyse, discrete, fold  # noqa: E402
from partita.cost import load  # noqa: E402
from partita.frontend.calling import Marked  # noqa: E402
from partita.frontend.trace import trace  # noqa: E402
from partita.mesh import Mesh  # noqa: E402
from partita.models.strategies import data_parallel  # noqa: E402
from partita.spmd import Lowerer, unfold  # noqa: E402
from partita.tiling import (  # noqa: E402
    Propagator,
    spec,
    untiled,
)
from partita.validation import validate  # noqa: E402

DTYPES = {
    "f32": "float32",
    "bf16": "bfloat16",
    "i32": "int32",
    "i1": "bool",
    "c64": "complex64",
    "u32": "uint32",
}


def _abstract(type_):
    """`"f32[4,8]"` as a `ShapeDtypeStruct`; anything else as it is."""
    if not isinstance(type_, str):
        return type_
    dtype, sizes = re.fullmatch(r"(\w+)\[([\d,]*)\]", type_).groups()
    shape = tuple(int(size) for size in sizes.split(",") if size)
    return jax.ShapeDtypeStruct(shape, jnp.dtype(DTYPES[dtype]))


def _program(fn, *types, donate=()):
    """Traces `fn` on types such as `"f32[4,8]"`, nested as it takes them."""
    return trace(fn, jax.tree.map(_abstract, types), {}, Marked.of(donate_argnums=donate)).program


@functools.cache
def _gpt_program(layers):
    """The train step of a tiny GPT with this many layers, its state donated."""
    model = models.build("gpt-tiny", layers=layers)
    return _program(model.fn, *model.args, donate=0)


REGATHER_WINDOW, LATENCY_BYTES = (
    int(figure.value) for figure in (load("cpu").regather_window, load("cpu").latency_bytes)
)


class Bench:
    """A program, analysed, over a mesh: tilings by the names of arguments and results."""

    def __init__(self, program, mesh="x=2", folded=False):
        self.program = program
        self.mesh = Mesh.of(mesh)
        self.analysis = analyse(program, REGATHER_WINDOW)
        self.graph = (fold if folded else discrete)(self.analysis)
        self.conflicts = self.analysis.groups.conflict_groups
        self.propagator = Propagator(self.graph, self.mesh, self.conflicts)
        self.lowerer = Lowerer(self.graph, self.mesh, LATENCY_BYTES)
        self.untiled = untiled(self.graph)

    def value(self, name):
        """The class of an argument or a result."""
        program = self.program
        names = (*program.argument_names, *program.result_names)
        return self.graph.value_class[(*program.arguments, *program.results)[names.index(name)]]

    def color(self, name, dim):
        """The color group of a dimension of an argument or a result."""
        return self.graph.values[self.value(name)].colors[dim]

    def resolution(self, place):
        """The resolution that gives every conflict to its role number `place`, if there is one."""
        if place is None:
            return {}
        return {number: roles[place] for number, roles in enumerate(self.conflicts)}

    def tile(self, *actions):
        """Applies color actions `(name, dim, axis[, role number])` in order."""
        tiling = self.untiled
        for name, dim, axis, *place in actions:
            resolution = self.resolution(place[0] if place else None)
            color, number = self.color(name, dim), self.mesh.axis(axis)
            tiling = self.propagator.tile_color(tiling, color, number, resolution).tiling
        return tiling

    def propagation(self, name, dim, axis, tiling=None, place=None):
        """Propagates an axis from a dimension of one argument or result."""
        return self.propagator.tile_nodes(
            self.untiled if tiling is None else tiling,
            [("value", self.value(name), dim)],
            self.mesh.axis(axis),
            self.resolution(place),
        )

    def layouts(self, tiling):
        """The tiled arguments and results, each as the entries of its `PartitionSpec`."""
        names = (*self.program.argument_names, *self.program.result_names)
        found = {name: spec(tiling.values[self.value(name)], self.mesh) for name in names}
        return {name: entries for name, entries in found.items() if entries}

    def spmd(self, *actions, regather=False):
        """The SPMD program after color actions, proven to compute what the original does."""
        lowering = self.lowerer.lower(self.tile(*actions))
        again = dict.fromkeys(range(len(lowering.plans)), Between.FAR) if regather else {}
        made = unfold(lowering.regathering(again))
        validate(made)
        return made


def pytest_addoption(parser):
    help = "search every program that a test plans, too (make test-searched)"
    parser.addoption("--searched", action="store_true", help=help)


@pytest.fixture(scope="session", autouse=True)
def _searched(request, tmp_path_factory):
    if not request.config.getoption("--searched"):
        yield
        return
    from searched import every_plan_searched

    with every_plan_searched(tmp_path_factory.mktemp("searched")):
        yield


def pytest_collection_modifyitems(items):
    """Tests of the largest plan run on one worker, which makes it once."""
    for item in items:
        if "gpt_24l" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("gpt-24l"))


@pytest.fixture(scope="session")
def program():
    """`program(fn, "f32[4,8]", ...)` traces a function."""
    return _program


@pytest.fixture(scope="session")
def gpt_program():
    """`gpt_program(layers)`, traced once."""
    return _gpt_program


@pytest.fixture(scope="session")
def gpt_24l():
    """The plan of a GPT with 24 layers, its batch split along `data`."""
    model = models.build("gpt-24l")
    plan = pt.plan(*[model.fn, *model.args], mesh="data=4,model=8", hardware="tpu_v5e", tactics=[])
    return plan.then(data_parallel())


@pytest.fixture(scope="session")
def bench():
    """`bench(fn, "f32[4,8]", ..., mesh="x=4")`, a `Bench`."""

    def bench(fn, *types, mesh="x=2", folded=False, donate=()):
        return Bench(_program(fn, *types, donate=donate), mesh, folded)

    return bench


@pytest.fixture(scope="session")
def gpt_bench():
    """`gpt_bench(layers, mesh)`, folded."""
    return functools.cache(lambda layers, mesh: Bench(_gpt_program(layers), mesh, folded=True))
