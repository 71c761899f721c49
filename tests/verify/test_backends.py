"""The backends of verification: how one is chosen, what each tells, and adding one."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys

import jax
import jax.numpy as jnp
import pytest
from typer.testing import CliRunner

import partita as pt
from checks import array
from partita import cli
from partita.verify import REWRITES, OutOfMemoryError, backends
from partita.verify.backends import backend_for
from partita.verify.backends.gpu import Gpu
from partita.verify.backends.host import Host
from partita.verify.backends.tpu import Tpu
from partita.verify.check import verified
from partita.verify.compile import Compiled, compiler_options
from partita.verify.host_rewrites import HOST_REWRITES
from partita.verify.memory import Memory


def layers(ws, x):
    return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0]


def planned(hardware="cpu"):
    """Each of three layers gathers its weight."""
    tactics = [pt.ManualPartition({"x": 0}, "x"), pt.ManualPartition({"ws": 1}, "x")]
    args = array(3, 16, 16), array(64, 16)
    return pt.plan(layers, *args, mesh="x=4", hardware=hardware, tactics=tactics)


# ------------------------------------------------------------------------------ choosing


@pytest.mark.parametrize(
    ("topology", "backend"),
    [
        (None, Host(None)),
        ("host", Host(None)),
        ("v5e:4x8", Tpu("v5e:4x8")),
        ("v5p:2x2x4_twisted", Tpu("v5p:2x2x4_twisted")),
        ("tpu7x:2x2x1", Tpu("tpu7x:2x2x1")),
        ("h100:8", Gpu("h100:8")),
        ("a100_80gb:2x8", Gpu("a100_80gb:2x8")),
    ],
)
def test_a_topology_tells_the_backend(topology, backend):
    assert backend_for(topology) == backend


@pytest.mark.parametrize("topology", ["h900:2x8", "4x8", "hosts", ""])
def test_an_unknown_topology_lists_what_is_known(topology):
    with pytest.raises(pt.VerifyError) as error:
        planned().verify(topology)
    message = str(error.value)
    assert message.startswith(f"unknown topology '{topology}'; expected a GPU")
    assert (
        "host for the host devices" in message
        and "v5e:4x8" in message
        and "pip install 'partita[tpu]'" in message
    )
    assert "GPUs: a100_40gb, a100_80gb, b200," in message
    assert "\n" not in message


def test_host_devices_can_be_named():
    found = planned().verify("host")
    assert found.passed and found.topology is None


@pytest.mark.parametrize(
    ("hardware", "topology", "extra"), [("tpu_v5e", "v5e:2x2", "tpu"), ("h100", "h100:4", "gpu")]
)
def test_without_the_compiler_the_extra_is_named(hardware, topology, extra, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(pt.VerifyError, match=rf"pip install 'partita\[{extra}\]'"):
        planned(hardware).verify(topology)


@pytest.mark.parametrize(
    ("topology", "device_type"),
    [
        (None, None),
        ("v5e:2x2", "tpu_v5e"),
        ("v5p:2x2x1", "tpu_v5p"),
        ("v9e:2x2", None),
        ("h200:8", "h200"),
    ],
)
def test_the_device_type_that_a_topology_stands_for(topology, device_type):
    assert backend_for(topology).device_type == device_type


def test_a_plan_for_another_device_type():
    with pytest.raises(pt.HardwareError, match=r"is for tpu_v5e.*v6e:2x2.*hardware='tpu_v6e'"):
        planned("tpu_v5e").verify("v6e:2x2")


def test_the_rewrites_that_are_listed_are_those_of_tpus():
    assert Tpu.rewrites == REWRITES and Host.rewrites == HOST_REWRITES


# ----------------------------------------------------------------------------- compiling


class Refusing:
    """A lowered program that no compiler takes."""

    def __init__(self, message):
        self.message = message

    def compile(self, compiler_options):
        raise jax.errors.JaxRuntimeError(self.message)


USED = "RESOURCE_EXHAUSTED: Ran out of memory. Used 20.5G of 15.75G hbm."
TEMPORARIES = (
    "RESOURCE_EXHAUSTED: E1000: Ran out of memory on HBM, the total memory required for HLO "
    "temporaries (48.00G) exceeds available HBM (15.75G). HLO module: f.\nSee ..."
)
NO_MORE = "RESOURCE_EXHAUSTED: no more."


@pytest.mark.parametrize(
    ("message", "topology", "used", "capacity"),
    [
        (USED, "v5e:2x2", 20.5, 15.75),
        (TEMPORARIES, "v5e:2x2", 48, 15.75),
        (NO_MORE, "v5e:2x2", None, None),
        (NO_MORE, None, None, None),
    ],
)
def test_how_compilers_say_that_memory_is_not_enough(message, topology, used, capacity):
    with pytest.raises(
        OutOfMemoryError, match=r"^compiling for .* runs out of memory: .*$"
    ) as raised:
        backend_for(topology).compile(Refusing(message), {})
    error = raised.value
    assert (error.used, error.capacity) == (
        used and int(used * 2**30),
        capacity and int(capacity * 2**30),
    )


@pytest.mark.parametrize(("topology", "target"), [(None, "host devices"), ("v5e:2x2", "v5e:2x2")])
def test_other_failures_of_a_compiler_are_one_line(topology, target):
    with pytest.raises(pt.VerifyError) as error:
        backend_for(topology).compile(Refusing("INTERNAL: a bug\nat line 3"), {})
    assert str(error.value) == f"compiling for {target} fails: INTERNAL: a bug"


# -------------------------------------------------------------------------------- adding

GRID = '''
"""Devices that a test has made up, called `grid:2x2`: those of the host, and a kind of h100."""

import dataclasses
import math

import jax
import numpy as np

from partita.errors import MeshError
from partita.verify.backends.protocol import Backend
from partita.verify.comparison import Becomes, hlo_collective


@dataclasses.dataclass(frozen=True)
class Grid(Backend):
    spelling = "a grid, such as grid:2x4"
    extra = "grid"
    device_type = "h100"
    widening_note = "A grid moves everything four times as wide."
    rewrites = {"dropped": "an all_gather is not seen again"}

    @classmethod
    def of(cls, topology):
        return cls(topology) if topology and topology.startswith("grid:") else None

    def device_mesh(self, mesh):
        sides = [int(side) for side in self.topology.removeprefix("grid:").split("x")]
        if math.prod(sides) != mesh.devices:
            raise MeshError(f"mesh {mesh} does not have the devices of {self.topology}")
        devices = jax.devices("cpu")[: mesh.devices]
        return jax.sharding.Mesh(np.array(devices).reshape(mesh.sizes), mesh.names)

    def cycles(self, module, runs):
        return sum(runs.times.values())

    def widening(self, dtype):
        return 4

    def known_rewrites(self, spmd):
        return [(Becomes("dropped", None),) for _ in spmd.collectives]


BACKEND = Grid
'''


@pytest.fixture
def grid(monkeypatch, tmp_path):
    """One file more in the package."""
    (tmp_path / "grid.py").write_text(GRID)
    monkeypatch.setattr(backends, "__path__", [*backends.__path__, str(tmp_path)])
    yield
    sys.modules.pop("partita.verify.backends.grid", None)
    vars(backends).pop("grid", None)


def test_a_backend_is_one_file(grid):
    found = planned("h100").verify("grid:2x2")
    assert found.topology == "grid:2x2" and found.memory.peak > 0
    # Collectives by how often they run, in the devices' types; what becomes of them by its rules.
    ((gather, predicted, compiled), *others) = sorted(found.collectives.rows(), reverse=True)
    assert (gather.kind, gather.bytes, predicted, compiled) == ("all_gather", 4 * 16 * 16 * 4, 3, 0)
    assert [(e.bytes, p, c) for e, p, c in others] == [(16 * 16 * 4, 0, 3)]
    assert found.collectives.rewrites == {"dropped": 3}
    assert found.passed  # another compiler than a host's may rewrite
    report = str(found)
    assert "partitioned form, for grid:2x2" in report
    assert "3 x dropped: an all_gather is not seen again." in report
    assert "four times as wide" in report


def test_a_backend_of_a_file_is_checked_as_any(grid):
    with pytest.raises(pt.MeshError, match="does not have the devices of grid:2x4"):
        planned("h100").verify("grid:2x4")
    with pytest.raises(pt.HardwareError, match="is for tpu_v5e, and topology grid:2x2"):
        planned("tpu_v5e").verify("grid:2x2")


def test_a_backend_of_a_file_is_listed(grid):
    with pytest.raises(pt.VerifyError, match=r"grid:2x4 \(pip install 'partita\[grid\]'\)"):
        backend_for("h900:2x8")


def test_the_command_line_takes_the_topologies_of_a_file(grid):
    args = ["mlp", "--mesh", "data=4", "--manual", "batch*:0@data", "--axes", "none"]
    args += ["--hardware", "h100", "--topology", "grid:4"]
    result = CliRunner().invoke(cli.app, ["verify", *args])
    assert result.exit_code == 0, result.output
    assert "for grid:4" in result.output


# ------------------------------------------------------------- what is compiled does not fit


@dataclasses.dataclass(frozen=True)
class Unrefusing(Host):
    """A compiler that compiles what does not fit, for devices that a test has made up."""

    refuses = False
    keeps_collectives = False


def compiled(plan, text, peak):
    """What a verification says of a program that was compiled to this text."""
    memory = Memory(arguments=peak, outputs=0, temporaries=0)
    return verified(plan, Unrefusing("heap:4"), "partitioned", Compiled(text, memory, 0.1))


TEXT = """
ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %a.remat = f32[8]{0} copy(%p)
  ROOT %b = f32[8]{0} add(%p, %a.remat)
}
"""


def test_what_needs_more_than_there_is_fails_though_the_compiler_does_not_say_so():
    plan = planned("h100")
    limit = plan.estimate.capacity
    assert not compiled(plan, TEXT, limit).problems
    found = compiled(plan, TEXT, limit + 1)
    assert found.exceeds and not found.passed
    assert "predicted to fit, and what was compiled needs more" in found.problems[0]
    assert "and the plan may use 59.3 GiB." in str(found)


def test_what_is_computed_again_to_save_memory_is_told():
    found = compiled(planned("h100"), TEXT, 1)
    assert found.computed_again == found.as_dict()["computed_again"] == 1
    assert "1 operations are computed again (.remat)" in str(found)


@pytest.mark.parametrize("written", ["xla_a", "=1", ""])
def test_options_of_the_compiler_are_written_as_pairs(written):
    with pytest.raises(pt.OptionError, match=f"a compiler option is NAME=VALUE, got '{written}'"):
        compiler_options([written])


def test_options_reach_the_compiler():
    assert compiler_options(["a=true", "b=3=4"]) == {"a": True, "b": "3=4"}
    with pytest.raises(pt.VerifyError, match="no_such_option"):
        planned().verify(compiler_options={"xla_no_such_option": "1"})


# -------------------------------------------------------------------------------- noise


class Noisy(Refusing):
    """What is compiled by native code that logs to standard error, and by Python that writes."""

    def compile(self, compiler_options):
        os.write(2, b"RET_CHECK failure\n")
        print("what Python says", file=sys.stderr)
        return super().compile(compiler_options)


@pytest.mark.parametrize("verbose", [False, True])
def test_what_a_compiler_logs_is_kept_from_the_terminal_unless_asked_for(
    verbose, monkeypatch, capfd
):
    plan = planned()
    monkeypatch.setattr(type(plan), "lower", lambda *_: Noisy("RESOURCE_EXHAUSTED: no more."))
    plan.verify(verbose=verbose)
    shown = capfd.readouterr().err
    assert "what Python says" in shown
    assert ("RET_CHECK" in shown) is verbose
