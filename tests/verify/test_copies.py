"""What loops copy, compiled for a TPU: caches of a decoder.

Skipped where libtpu is not installed.
"""

from __future__ import annotations

import importlib.util

import pytest

import partita as pt
from decoding import WAYS, decoder

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs pip install 'partita[tpu]'"
)

CASES = [
    *((way, {}) for way in WAYS),
    (WAYS[0], {"heads": 2, "length": 8192}),
    (WAYS[1], {"steps": 16}),
    (WAYS[2], {"scatter": True}),
]


@pytest.mark.parametrize(("way", "how"), CASES)
def test_the_compiler_copies_what_the_time_counts(way, how):
    fn, arguments = decoder(way, **how)
    plan = pt.plan(fn, *arguments, mesh="x=4", hardware="tpu_v5e", tactics=[], donate_argnums=1)
    compiled = plan.verify("v5e:2x2").time
    assert plan.estimate.compute_time == pytest.approx(compiled.compute_time, rel=0.2)


CARRIED = {"steps": 16, "batch": 16, "heads": 32, "groups": 1}


@pytest.mark.parametrize("made", [{"x": 0}, {"ws['k']": 2}], ids=["by sequences", "by heads"])
def test_a_cache_lies_in_a_loop_as_its_new_part_is_made(made):
    """Four sequences a device: tiles of four rows if it makes the keys of no other."""
    fn, arguments = decoder(WAYS[1], **CARRIED)
    tactics = [pt.ManualPartition(dims, "x") for dims in (made, {"caches": 1})]
    plan = pt.plan(fn, *arguments, mesh="x=4", hardware="tpu_v5e", tactics=tactics)
    compiled = plan.verify("v5e:2x2").time
    assert plan.estimate.compute_time == pytest.approx(compiled.compute_time, rel=0.2)
