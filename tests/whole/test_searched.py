"""What `tests/search/test_every_program.py` plans, searched over more meshes, and run; whole models
and many random programs, too.

    PARTITA_EXAMPLES=2000 pytest tests/whole/test_searched.py    looks longer at random programs
"""

from __future__ import annotations

import os

import jax
import numpy as np
import pytest

import partita as pt
import unusual
from fuzzing.constraining import constrain
from fuzzing.programs import MESHES as RANDOM
from fuzzing.programs import program
from partita import models
from searched import search_and_check
from test_operations import RUN, example
from tools import coverage

MESHES = ("x=3,y=2", "x=5", "x=1", "x=1,y=2", "x=2,y=2,z=2")
"""Of axes that divide little, of one device, and of so many that programs are searched on coarser
meshes first."""

RUN_OVER = ("x=2,y=4", "x=3,y=2", "x=1,y=2")
"""Those over which programs are run."""

EXAMPLES = int(os.environ.get("PARTITA_EXAMPLES", "80"))
FIRST = int(os.environ.get("PARTITA_SEED", "0"))
PARTS = 8
TOLERANCE = 1e-4
"""Single precision, and sums in another order."""

LARGE = {"unet-tiny", "sdxl-tiny", "deepseek-tiny"}
"""Presets whose searches are in `tests/whole/test_families.py` or take minutes."""


@pytest.mark.parametrize("mesh", ["x=3,y=2", "x=2,y=2,z=2"])
@pytest.mark.parametrize("kind", RUN)
def test_an_operation(kind, mesh, tmp_path):
    fn, arguments = example(kind, tmp_path)
    search_and_check(fn, () if isinstance(fn, pt.Module) else arguments, mesh, tmp_path)


def runs(made, mesh, folder):
    """Searches a program over a mesh, and runs it if it can be."""
    plan = search_and_check(made.fn, made.types, mesh, folder)
    arguments = made.arguments()
    ours, theirs = plan.jit()(*plan.shard(*arguments)), jax.jit(made.fn)(*arguments)
    for mine, their in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert mine.dtype == their.dtype
        if mine.dtype.itemsize < 4:
            mine, their = (np.asarray(each).astype(np.float32) for each in (mine, their))
        np.testing.assert_allclose(mine, their, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("mesh", RUN_OVER)
@pytest.mark.parametrize("name", unusual.PROGRAMS)
def test_an_unusual_program(name, mesh, tmp_path):
    runs(unusual.PROGRAMS[name], mesh, tmp_path)


@pytest.mark.parametrize(
    ("mesh", "name"),
    [(mesh, name) for mesh in RUN_OVER for name in unusual.manual(mesh)],
)
def test_a_shard_map(mesh, name, tmp_path):
    runs(unusual.manual(mesh)[name], mesh, tmp_path)


@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs(part, tmp_path):
    """Every fifth has constraints."""
    for number in range(FIRST + part, FIRST + EXAMPLES, PARTS):
        made, mesh = program(number), (*RANDOM, *MESHES)[number % (len(RANDOM) + len(MESHES))]
        if number % 5 == 0:
            constrain(made, mesh, number)
        try:
            search_and_check(made.fn, (made.arguments(),), mesh, tmp_path, seed=number)
        except Exception as error:
            error.add_note(f"program {number} over {mesh}:\n{made}")
            raise


@pytest.mark.parametrize("preset", sorted(set(coverage.PRESETS) - LARGE))
def test_a_model(preset, tmp_path):
    model = models.build(preset)
    search_and_check(model.fn, model.args, "x=2,y=2", tmp_path)
