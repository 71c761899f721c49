"""How soon a search is close to its last plan: the first that is not worse by more than a share."""

from __future__ import annotations

from tools.methods.cases import Case
from tools.pace import Found, Pace, markdown

CURVE = (
    Found(0.1, 1, False, 900.0),
    Found(0.2, 3, True, 0.120),
    Found(0.5, 40, True, 0.1009),
    Found(0.9, 70, True, 0.100),
)


def test_what_does_not_fit_is_not_close_to_what_does():
    made = Pace(Case("mlp", "x=2", "tpu_v5e"), CURVE, 2.0, 100)
    assert [made.close(share).plans for share in (0.5, 0.05, 0.01, 0.001)] == [3, 40, 40, 70]


def test_a_search_is_a_row():
    made = Pace(Case("mlp", "x=2", "tpu_v5e"), CURVE, 2.0, 100)
    row = markdown([made]).splitlines()[-1]
    assert row.startswith("| mlp | x=2 | tpu_v5e | 100 ms | 2.0 s | 100 | 0.50 s, 40 plans |")
