"""Exchanges along a sharded dimension: who sends what to whom, and what comes of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.mesh import Mesh
from partita.program.ir import TensorType
from partita.program.rule import Reach
from partita.spmd.exchange import exchange, gathered
from partita.spmd.reshard import reshard, traffic
from partita.spmd.unreduced import NONE


def windows(reach, size, shards):
    """What each device is to have of the numbers from 1 on."""
    found = []
    for device in range(shards):
        at = reach.first(device, shards) + np.arange(reach.length(shards))
        if reach.wraps:
            at = at % size
        found.append([int(i) + 1 if 0 <= i < size else 0 for i in at])
    return found


def put_together(window, have):
    """What each device makes of what it has, block by block."""
    found = []
    for device, held in enumerate(have):
        made = [0] * window.size
        for block in window.blocks:
            if fill := block.fills[device]:
                for at in range(*fill):
                    made[at] = held[block.start + at - block.at[device]]
        if window.parts is not None:
            assert made == [held[i] for part in window.parts for i in range(*part)]
        found.append(made)
    return found


@st.composite
def exchanges(draw):
    shards, own = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    size = shards * own
    covered = shards * draw(st.integers(1, 7))
    extra = draw(st.integers(1 - covered // shards, 4))
    start = draw(st.integers(-size - 3, size + 3))
    wraps = draw(st.booleans())
    return Reach(covered, start, extra, wraps, draw(st.booleans())), size, shards


@given(exchanges())
def test_every_device_gets_its_window(case):
    reach, size, shards = case
    whole = list(range(1, size + 1))
    have = [list(part) for part in np.split(np.array(whole), shards)]
    sends, window = exchange(*case)
    own = [list(part) for part in have]
    for send in sends:
        senders, receivers = zip(*send.pairs, strict=True)
        assert len(set(senders)) == len(senders) and len(set(receivers)) == len(receivers)
        assert not any(a == b for a, b in send.pairs)
        sender = {b: a for a, b in send.pairs}
        for device in range(shards):
            start = send.starts[sender.get(device, 0)]
            block = own[sender[device]][start : start + send.size] if device in sender else None
            have[device] += block or [0] * send.size
    assert put_together(window, have) == windows(reach, size, shards)
    assert put_together(gathered(*case), [whole] * shards) == windows(reach, size, shards)


ROUNDS = {
    "one to the next, around": (Reach(16, -1, wraps=True), [1]),
    "a whole shard": (Reach(16, -4, wraps=True), [4]),
    "one shard and a part of another": (Reach(16, -5, wraps=True), [3, 1]),
    "several shards away": (Reach(16, -8, wraps=True), [4]),
    "zeros come in": (Reach(16, -1), [1]),
    "both neighbours": (Reach.halo(16, 1, 2), [2, 1]),
    "the other way around": (Reach(16, mirrored=True), [4]),
    "nothing moves": (Reach(16), []),
    "every second one": (Reach(16, 1, -1), []),
    "the first half": (Reach(8), [2, 2]),
}


@pytest.mark.parametrize("name", ROUNDS)
def test_rounds_send_no_more_than_what_is_missing(name):
    reach, sizes = ROUNDS[name]
    assert [send.size for send in exchange(reach, 16, 4)[0]] == sizes


def test_what_goes_to_many_is_gathered_where_that_is_less():
    """By bytes an exchange never loses; with a price on each collective it may."""
    mesh, layout = Mesh.of("x=8"), ((0,),)
    type_ = TensorType((64,), "f32")
    spread = (Reach(8),)  # one element for each, all of them on the first device
    ways = {
        latency: reshard(type_, layout, NONE, layout, mesh, halo=spread, latency_bytes=latency)
        for latency in (0, 100)
    }
    assert {step.kind for step in ways[0]} == {"collective_permute"}
    assert [step.kind for step in ways[100]] == ["all_gather", "slice"]
    assert traffic(ways[0], mesh, 0) == 7 * 4
