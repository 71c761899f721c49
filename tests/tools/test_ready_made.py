"""A search beside strategies by hand: what is compared, and what the table says of it."""

from __future__ import annotations

from tools.methods.cases import Case, Problems
from tools.ready_made import Row, compared, load, markdown, strategies

FITS = Row("gpt", "data=2,model=2", "tpu_v5e", 0, "FSDP", 2.0, 1.0, 9, ("batch -> data",))
NOTHING_FITS = Row("gpt", "data=2", "tpu_v5e", 0, "nothing fits", *[float("inf")] * 2, 9, ())


def test_a_search_is_compared_with_the_best_strategy_that_fits():
    row = compared(Problems({}), Case("mlp", "data=2,model=2", "tpu_v5e"), budget=200)
    assert row.by_hand.split(" (")[0] in strategies("mlp")
    assert 0 < row.found_time <= row.hand_time
    assert row.words


def test_the_table_counts_where_the_search_is_better_and_where_nothing_fits():
    shown = markdown([FITS, NOTHING_FITS])
    assert "| FSDP | 2 s | 1 s | -50.0 % | batch -> data |" in shown
    assert shown.endswith("2 cells: better in 1, worse in 0.")


def test_there_is_nothing_in_a_file_that_is_not_there(tmp_path):
    assert load(tmp_path / "none.jsonl") == []
