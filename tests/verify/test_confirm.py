"""A compiler chooses between plans: compiled for host devices, which the tests give a time."""

from __future__ import annotations

import json
import sys

import jax
import jax.numpy as jnp
import pytest

import partita as pt
from checks import array
from partita import cli, models
from partita.confirm import MOST_SHOWN
from partita.cost.estimate import StepTime
from partita.verify import OutOfMemoryError
from partita.verify.backends.host import Host

ARGS = array(256, 256), array(1024, 256)
MESH = "data=4,model=2"
MANUAL = pt.ManualPartition({"x": 0}, axis="data")


def step(w, x):
    return w - jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)


def planned(*tactics, fn=step, args=ARGS, mesh=MESH):
    return pt.plan(fn, *args, mesh=mesh, hardware="cpu", tactics=tactics)


def traffic(plan):
    """Seconds of a step as the tests tell them: a microsecond for each byte that moves."""
    return 1e-6 * sum(c.count * c.bytes for c in plan.collectives)


@pytest.fixture
def timed(monkeypatch):
    """Host devices tell a time: by the bytes of the collectives that were compiled."""

    def time(self, module, runs, found, plan):
        return StepTime(
            1e-6 * sum(each.times * each.collective.bytes for each in found), 0.0, (0.0,)
        )

    monkeypatch.setattr(Host, "time", time)


@pytest.fixture(scope="module")
def searched():
    return planned(pt.AutomaticPartition(budget=100))


def test_the_quickest_as_compiled_is_taken(timed, searched):
    found = pt.confirm(searched, count=4)
    candidates = searched.candidates(4)
    assert [each.plan.assignment for each in found.plans] == [c.assignment for c in candidates]
    times = [traffic(each) for each in candidates]
    assert len(set(times)) > 1
    assert [each.step_time for each in found.plans] == pytest.approx(times)
    assert found.taken.step_time == pytest.approx(min(times))
    assert found.plan.assignment == candidates[times.index(min(times))].assignment
    assert found.fits


def test_plans_by_hand_take_part_whatever_their_mesh(timed, searched):
    by_hand = planned(mesh="all=8")
    assert traffic(by_hand) == 0
    found = pt.confirm(planned(MANUAL), count=1, others=by_hand)
    assert found.plan is by_hand and found.taken.what == "given"


def test_of_equal_ones_the_plan_itself_is_taken(timed):
    plan = planned(MANUAL)
    assert pt.confirm(plan, count=1, others=[planned(MANUAL)]).plan is plan


def test_what_does_not_fit_is_not_taken(timed, searched, monkeypatch):
    compile_ = Host.compile
    refused = min(searched.candidates(3), key=traffic)

    def refuses(self, lowered, options):
        if lowered.as_text() == refused.lower().as_text():
            raise OutOfMemoryError("too large", 2**40, 2**30)
        return compile_(self, lowered, options)

    monkeypatch.setattr(Host, "compile", refuses)
    found = pt.confirm(searched, count=3)
    (too_large,) = [each for each in found.plans if not each.fits]
    assert too_large.plan.assignment == refused.assignment
    assert too_large.peak_memory == 2**40 and too_large.step_time is None
    assert found.fits and found.taken is not too_large
    assert "1024.0 GiB" in str(found) and "DOES NOT FIT" in str(found)


def test_if_none_fits_the_smallest_is_taken_and_that_is_said(timed, searched, monkeypatch):
    sizes = iter([3 * 2**30, 2 * 2**30, 4 * 2**30])

    def refuses(self, lowered, options):
        raise OutOfMemoryError("too large", next(sizes), 2**30)

    monkeypatch.setattr(Host, "compile", refuses)
    found = pt.confirm(searched, count=3)
    assert not found.fits and found.taken is found.plans[1]
    assert "None of them fits; the smallest is taken." in str(found)


def test_a_plan_that_cannot_be_compiled_is_left_out(timed, searched, monkeypatch):
    compile_, failing = Host.compile, searched.lower().as_text()

    def fails(self, lowered, options):
        if lowered.as_text() == failing:
            raise pt.VerifyError("compiling fails: no such thing")
        return compile_(self, lowered, options)

    monkeypatch.setattr(Host, "compile", fails)
    found = pt.confirm(searched, count=3)
    assert found.plans[0].failure == "compiling fails: no such thing"
    assert found.plans[0] is not found.taken
    assert "failed: compiling fails: no such thing" in str(found)
    with pytest.raises(pt.VerifyError, match="no such thing"):
        pt.confirm(searched, count=1)


def test_options_of_the_compiler_are_handed_on(timed, searched, monkeypatch):
    told = []
    compile_ = Host.compile

    def listens(self, lowered, options):
        told.append(options)
        return compile_(self, lowered, options)

    monkeypatch.setattr(Host, "compile", listens)
    pt.confirm(searched, count=2, compiler_options={"xla_embed_ir_in_executable": False})
    assert len(told) == 2
    assert all(options["xla_embed_ir_in_executable"] is False for options in told)


def test_the_table(timed, searched):
    found = pt.confirm(searched, count=3, others=[planned(MANUAL)])
    title, head, *rows = str(found).splitlines()
    assert title == "Compiled for host devices"
    assert head.split() == "plan step, predicted compiled change peak, predicted compiled".split()
    assert [row.split("  ")[0][:8] for row in rows] == [e.what[:8] for e in found.plans]
    assert rows[0].startswith("the plan ")
    assert rows[-1].startswith(f"given: {MANUAL.name} ")
    assert [row.endswith(" taken") for row in rows] == [each is found.taken for each in found.plans]
    assert all(len(each.what) <= MOST_SHOWN for each in found.plans)


def test_as_data(timed, searched):
    found = pt.confirm(searched, count=2)
    data = json.loads(json.dumps(found.as_dict()))
    assert data["topology"] == "host devices"
    row = data["plans"][data["taken"]]
    assert row["step_time"] == pytest.approx(found.taken.step_time)
    assert row["predicted_step_time"] == found.plan.estimate.step_time
    assert row["mesh"] == {"data": 4, "model": 2} and row["fits"] is True


def test_progress_is_told(timed, searched):
    told = []
    pt.confirm(searched, count=2, progress=lambda *step: told.append(step))
    assert [(done, total) for done, total, _ in told] == [(0, 2), (1, 2)]


def test_where_nothing_tells_a_time(searched):
    with pytest.raises(pt.VerifyError, match=r"host devices.*give topology=, such as \"v5e:4x8\""):
        pt.confirm(searched)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"count": 0}, pt.OptionError, r"count=0: expected an integer of at least 1"),
        ({"topology": "nowhere"}, pt.VerifyError, r"unknown topology 'nowhere'"),
        ({"others": [3]}, pt.TacticError, r"other=3: expected another plan"),
        (
            {"others": [planned(fn=lambda a: a, args=ARGS[:1])]},
            pt.TacticError,
            r"plans of different programs",
        ),
    ],
)
def test_what_is_wrong_is_one_message(searched, given, error, message):
    with pytest.raises(error, match=message):
        pt.confirm(searched, **given)


def test_a_plan_that_no_search_has_made_has_no_candidates():
    with pytest.raises(pt.TacticError, match="has no search in its history"):
        pt.confirm(planned(MANUAL))


# ------------------------------------------------------------------------------ the command

COMMAND = "plan gpt-tiny --mesh=data=4,model=2 --hardware=tpu_v5e --budget=100".split()


@pytest.fixture
def partita(monkeypatch, capsys):
    """Runs the command in this process: exit code, standard output, standard error."""

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["partita", *COMMAND, *map(str, args)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code or 0, *capsys.readouterr()

    return run


def test_the_command_goes_on_with_the_plan_that_is_taken(monkeypatch, partita, tmp_path):
    times = iter([4.0, 3.0, 1.0, 2.0])
    monkeypatch.setattr(Host, "time", lambda *made: StepTime(next(times), 0.0, (0.0,)))
    saved, page = tmp_path / "plan.json", tmp_path / "plan.html"
    confirm = ("--confirm=4", "--topology=host", f"--save={saved}", f"--html={page}")
    code, out, err = partita(*confirm)
    assert (code, err) == (0, "")
    table, _, report = out.partition("\n\n")
    (taken,) = [line for line in table.splitlines() if line.endswith("taken")]
    assert table.splitlines().index(taken) == 4 and "1 s" in taken
    model = models.build("gpt-tiny")
    plan = pt.load(saved, model.fn, *model.args)
    assert plan.history[-1].decisions[0] in report
    assert plan.history[-1].decisions[0] in ("seen by the search", "a start of the search")
    assert "compiled for host devices" in page.read_text("utf-8")


def test_the_command_prints_json(timed, partita):
    code, out, _ = partita("--confirm=3", "--topology=host", "--json")
    data = json.loads(out)
    assert code == 0 and len(data["confirmed"]["plans"]) == 3
    taken = data["confirmed"]["plans"][data["confirmed"]["taken"]]
    assert taken["predicted_step_time"] == data["estimate"]["step_time"]


def test_the_command_ends_with_code_1_if_nothing_fits(timed, partita, monkeypatch):
    def refuses(self, lowered, options):
        raise OutOfMemoryError("too large", 2**40, 2**30)

    monkeypatch.setattr(Host, "compile", refuses)
    code, out, _ = partita("--confirm=2", "--topology=host")
    assert code == 1 and "None of them fits" in out
