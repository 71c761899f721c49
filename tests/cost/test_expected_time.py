"""What a search counts on: a step in which some of what could be hidden is not."""

from __future__ import annotations

import msgspec
import pytest

from partita.cost import load
from partita.cost.devices.hardware import Figure
from partita.cost.estimate import StepTime

TIME = StepTime(10.0, 1.0, (4.0, 12.0))


@pytest.mark.parametrize(("share", "expected"), [(1.0, 13.0), (0.0, 27.0), (0.5, 20.0)])
def test_between_all_and_nothing_hidden(share, expected):
    assert TIME.expected_time(share) == expected
    assert (TIME.step_time, TIME.serial_time) == (13.0, 27.0)


def test_on_gpus_a_search_counts_what_is_not_hidden():
    shares = {name: load(name).hidden_share.value for name in ("h100", "b200", "tpu_v5e")}
    assert shares["tpu_v5e"] == 1
    assert max(shares["h100"], shares["b200"]) < 0.5


def test_more_than_all_cannot_be_hidden():
    with pytest.raises(ValueError, match=r"hidden_share is at most 1, got 1\.5"):
        msgspec.structs.replace(load("h100"), hidden_share=Figure(1.5, "assumption"))
