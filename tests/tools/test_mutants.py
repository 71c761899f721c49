"""`python -m tools.mutants`: faults that can be planted, and tests that find them."""

from __future__ import annotations

import dataclasses
import re

import pytest
from tools.mutants.__main__ import QUICK, markdown, run, summary
from tools.mutants.planted import MutantError, mutants, planted
from tools.mutants.run import ROOT, Outcome, tried
from tools.mutants.suite import strangers

MUTANTS = mutants()
PIECES = next(each for each in MUTANTS if each.function == "_block")
EXCHANGE = ["tests/spmd/test_exchange.py"]


LEFT_OUT, LISTED = (
    [line.removeprefix("--deselect=") for line in QUICK.read_text().split() if line[0] == start]
    for start in "-t"
)


@pytest.mark.parametrize("test", [*LISTED, *LEFT_OUT])
def test_quick_lists_tests_that_there_are(test):
    file, _, name = test.partition("::")
    assert (ROOT / file).exists()
    assert not name or re.search(rf"^(def|class) {name}\b", (ROOT / file).read_text(), re.MULTILINE)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: f"{each.file}:{each.line}")
def test_each_can_be_planted(mutant):
    """Its text occurs once, and `make quick` has the tests that should find it."""
    assert mutant.changed != mutant.source
    assert mutant.first and all(each.startswith(tuple(LISTED)) for each in mutant.first)
    assert all((ROOT / each).exists() for each in mutant.first)


def test_there_are_some_in_every_part_and_none_twice():
    parts = [mutant.file.partition("/")[0] for mutant in MUTANTS]
    for part in ("tiling", "spmd", "cost", "search", "validation"):
        assert parts.count(part) >= 5
    assert len({(mutant.file, mutant.changed) for mutant in MUTANTS}) == len(MUTANTS) >= 40


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": "nowhere to be found"}, "occurs 0 times instead of once"),
        ({"text": "piece"}, r"occurs \d\d times instead of once"),
        ({"by": PIECES.text}, "replaced by itself"),
        ({"by": "at[("}, "not Python"),
        ({"file": "spmd/gone.py"}, "there is no file spmd/gone.py"),
    ],
)
def test_one_that_cannot_be_planted_is_an_error_that_says_why(changes, message):
    with pytest.raises(MutantError, match=message):
        _ = dataclasses.replace(PIECES, **changes).changed


def test_it_is_planted_in_a_copy(tmp_path):
    planted(PIECES, tmp_path)
    copy = tmp_path / "partita" / PIECES.file
    assert copy.read_text() == PIECES.changed != PIECES.source
    assert (tmp_path / "partita/tiling/tiling.py").is_file()


def test_a_mutant_is_found_by_the_first_test_that_fails():
    outcome = tried(PIECES, EXCHANGE)
    assert outcome.found and outcome.test.startswith("tests/spmd/test_exchange.py::test_")
    assert f"{PIECES.file}:{PIECES.line} _block | {PIECES.breaks} | {outcome.test}" in markdown(
        [outcome]
    )


def test_a_mutant_survives_tests_of_something_else():
    outcome = tried(PIECES, ["tests/test_mesh.py"])
    assert not outcome.found
    assert "**survived**" in markdown([outcome])
    assert summary([outcome, Outcome(PIECES, "test_of_it", 1.0)]) == "1 of 2 found"


def test_tests_that_never_end_have_found_it():
    outcome = tried(PIECES, EXCHANGE, most=0.1)
    assert outcome.found and "none had failed after 0.1 s" in outcome.test


def test_tests_that_do_not_run_are_an_error():
    with pytest.raises(MutantError, match=r"did not run with that in spmd/exchange\.py"):
        tried(PIECES, ["tests/there_is_none.py"])


def test_tests_that_fail_by_themselves_find_nothing(monkeypatch):
    monkeypatch.setattr("tools.mutants.__main__.tried", lambda *_: Outcome(None, "test_wrong", 1.0))
    with pytest.raises(MutantError, match="test_wrong fails without any mutant"):
        list(run(MUTANTS[:1], [], 1, None))


def test_a_package_from_elsewhere_is_noticed(tmp_path):
    assert any("partita.tiling.propagate is " in each for each in strangers(tmp_path))
    assert not [*strangers(ROOT / "src")]
