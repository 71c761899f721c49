"""Plan files of every format that there was: read, migrated, and taken up.

Each file of `tests/data/plans` was written by the partita whose format it has, for the step below.
A new format adds a file here, and a migration in `partita.saved.migrate`.
"""

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import partita as pt
from checks import array
from partita.saved.schema import FORMAT, decode, encode

FILES = Path(__file__).parents[1] / "data" / "plans"
FORMATS = range(1, FORMAT + 1)


def train_step(params, batch):
    def loss_fn(params):
        hidden = jax.nn.relu(batch["x"] @ params["w1"])
        return jnp.mean((hidden @ params["w2"] - batch["y"]) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


ARGS = (
    {"w1": array(1024, 4096), "w2": array(4096, 1024)},
    {"x": array(256, 1024), "y": array(256, 1024)},
)
SHARDINGS = {
    "params['w1']": (None, "model"),
    "params['w2']": ("data", "model"),
    "batch['x']": ("data",),
    "batch['y']": ("data", "model"),
}


def file(version):
    return FILES / f"format-{version}.json"


def shardings(plan):
    params, batch = plan.in_shardings
    names = plan.program.argument_names
    return dict(zip(names, map(tuple, (*params.values(), *batch.values())), strict=True))


def test_there_is_a_file_of_every_format():
    assert sorted(FILES.glob("*.json")) == sorted(map(file, FORMATS))
    for version in FORMATS:
        assert json.loads(file(version).read_text())["partita_plan"] == version


@pytest.mark.parametrize("version", FORMATS)
def test_a_file_of_an_earlier_format_is_read_as_one_of_the_present(version):
    table = decode(file(version).read_bytes(), file(version))
    assert table.partita_plan == FORMAT
    assert {a.name: a.sharding for a in table.program.arguments} == SHARDINGS
    assert sum(row.count for row in table.collectives) == sum(
        each.count for each in table.estimate.traffic
    )
    assert decode(encode(table), "again") == table


@pytest.mark.parametrize("version", FORMATS)
def test_a_plan_of_an_earlier_format_is_taken_up(version):
    plan = pt.load(file(version), train_step, *ARGS, rebase=True)
    assert shardings(plan) == SHARDINGS
    assert plan.donate_argnums == (0,)
    assert plan.not_kept == ()


@pytest.mark.parametrize("version", FORMATS)
def test_what_earlier_tactics_decided_is_decided_again_for_a_program_that_changed(version):
    def with_bias(params, batch):
        return train_step(params, batch | {"x": batch["x"] + batch["bias"]})

    params, batch = ARGS
    plan = pt.load(file(version), with_bias, params, batch | {"bias": array(1024)}, rebase=True)
    assert SHARDINGS.items() <= shardings_by_name(plan).items()


def shardings_by_name(plan):
    flat = jax.tree.leaves(plan.in_shardings)
    return dict(zip(plan.program.argument_names, map(tuple, flat), strict=True))


@pytest.mark.parametrize("version", FORMATS)
def test_a_damaged_file_of_an_earlier_format_is_refused(version, tmp_path):
    text = file(version).read_text()
    (tmp_path / "plan.json").write_text(re.sub(r'"capacity": \d+', '"capacity": 1', text, count=1))
    with pytest.raises(pt.FileError, match="its checksum is that of other contents"):
        pt.load(tmp_path / "plan.json", train_step, *ARGS)


@pytest.mark.parametrize("version", range(1, FORMAT))
def test_an_earlier_format_without_a_field_is_refused(version, tmp_path):
    raw = json.loads(file(version).read_text())
    del raw["history"]
    (tmp_path / "plan.json").write_text(json.dumps(raw))
    with pytest.raises(pt.FileError, match=r"plan\.json.*"):
        pt.load(tmp_path / "plan.json", train_step, *ARGS)
