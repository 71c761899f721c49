"""A collective is one entry: here one is added in place, and everything knows it.

What it takes is an entry in `partita.program.collectives`, which says what it does, how data
travel, and how StableHLO and HLO write it. One in groups of devices needs no emitter of its own.
"""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import jax.numpy as jnp
import msgspec
import pytest

import partita as pt
from checks import array
from partita.cost.network.collectives import interconnect
from partita.emit.collectives import EMITTERS, collective
from partita.emit.spmd import emit
from partita.program import collectives
from partita.program.collectives import COLLECTIVES, LOCAL, CollectiveKind, HloForm
from partita.spmd.instructions import Reshard
from partita.spmd.show import show
from partita.stablehlo import mlir
from partita.verify import HloCollective, compare, compiled_collectives

BROADCAST = CollectiveKind("collective_broadcast", HloForm(("collective-broadcast",)), "ring")


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(COLLECTIVES, BROADCAST.name, BROADCAST)
    monkeypatch.setitem(EMITTERS, BROADCAST.name, collective)


@pytest.fixture(scope="module")
def plan():
    return pt.plan(
        lambda w, x: jnp.tanh(x @ w),
        array(8, 8),
        array(16, 8),
        mesh="model=2",
        hardware="tpu_v5e",
        tactics=[pt.ManualPartition({"w": 0}, axis="model")],
    )


@pytest.fixture
def broadcasting(registered, plan):
    """The plan's program, with a broadcast in place of its only collective."""

    def replaced(item):
        if not isinstance(item, Reshard) or not item.step.is_collective:
            return item
        return dataclasses.replace(item, step=dataclasses.replace(item.step, kind=BROADCAST.name))

    spmd = plan.spmd
    assert [c.kind for c in spmd.collectives] == ["all_reduce"]
    return dataclasses.replace(spmd, instructions=tuple(map(replaced, spmd.instructions)))


def test_it_has_a_payload(broadcasting, plan):
    (made,) = broadcasting.collectives
    assert (made.kind, made.bytes) == (BROADCAST.name, plan.collectives[0].bytes)


def test_it_has_a_cost(broadcasting, plan):
    networks = interconnect(plan.mesh, plan.hardware)
    (once,), (twice,) = broadcasting.collective_steps, plan.spmd.collective_steps
    # An all_reduce goes around the ring twice.
    assert 2 * networks.seconds(once.step) == networks.seconds(twice.step) > 0


def test_it_prints(broadcasting):
    (line,) = [text for text in show(broadcasting).splitlines() if "#0" in text]
    assert " = collective_broadcast(b2, model) : f32[16,8]  #0: 512 B, " in line
    assert str(broadcasting.collectives[0]).startswith("#0 collective_broadcast(model) 512 B x1")


def test_it_is_emitted(broadcasting):
    with mlir.context():
        text = str(emit(broadcasting))
    assert '"stablehlo.collective_broadcast"' in text
    assert "replica_groups = dense<[[0, 1]]>" in text
    assert "all_reduce" not in text


HLO = "  %made = f32[16,8]{1,0} collective-broadcast(%x), channel_id=1, replica_groups={{0,1}}\n"


def test_compiled_programs_are_read(broadcasting, plan):
    assert compiled_collectives(HLO) == [HloCollective(BROADCAST.name, 512, ((0, 1),))]
    started = HLO.replace("broadcast(", "broadcast-start(")
    assert compiled_collectives(started) == compiled_collectives(HLO)
    assert compare(broadcasting.collectives, plan.mesh, HLO).equal


def test_hardware_may_say_that_it_overlaps(registered, plan):
    hardware = msgspec.structs.replace(plan.hardware, overlapped=(BROADCAST.name,))
    assert hardware.overlapped == (BROADCAST.name,)


def test_without_an_entry_nothing_knows_it():
    assert compiled_collectives(HLO) == []
    assert BROADCAST.name not in COLLECTIVES


@pytest.mark.parametrize("kind", COLLECTIVES.values(), ids=lambda kind: kind.name)
def test_every_entry_is_emitted_and_spelled(kind):
    assert kind.name in EMITTERS
    assert kind.hlo.opcodes[0] == kind.name.replace("_", "-")


def test_nothing_else_spells_a_kind():
    """Only PyTorch's front end does, where torch calls its own collectives so."""
    sources = Path(collectives.__file__).parents[1]
    spelled = {name for kind in COLLECTIVES.values() for name in (kind.name, *kind.hlo.opcodes)}
    named = [
        f"{path.relative_to(sources)}:{node.lineno} {node.value}"
        for path in sorted(sources.rglob("*.py"))
        if path != Path(collectives.__file__)
        and path.relative_to(sources) != Path("torch", "communication.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant)
        and str(node.value).removeprefix("stablehlo.").removesuffix("_dim") in spelled
    ]
    assert named == []


def test_what_devices_hold_afterwards_follows_from_the_entry():
    replicating = {kind.name for kind in COLLECTIVES.values() if kind.replicates}
    moving = {kind.name for kind in (*COLLECTIVES.values(), *LOCAL.values()) if kind.moves}
    assert replicating == {"all_gather", "all_reduce"}
    assert moving == {"all_gather", "all_to_all", "collective_permute", "slice"}


def test_payloads_from_either_side():
    """A reduce_scatter's result is a shard of its operand; of all others it is the payload."""
    for kind in COLLECTIVES.values():
        devices = 4 if kind is collectives.REDUCE_SCATTER else 1
        assert kind.payload_of_result(100, 4) == 100 * devices
    assert collectives.payload(100, 400) == collectives.payload(400, 100) == 400
