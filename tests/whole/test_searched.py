"""What `tests/search/test_every_program.py` plans, searched over more meshes, and run; whole models
and many random programs, too.

    PARTITA_EXAMPLES=2000 pytest tests/whole/test_searched.py    looks longer at random programs
    PARTITA_EVERY_MESH=1 pytest tests/whole/test_searched.py     takes every program over every mesh
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

EXAMPLES = int(os.environ.get("PARTITA_EXAMPLES", "24"))
FIRST = int(os.environ.get("PARTITA_SEED", "0"))
PARTS = 8
TOLERANCE = 1e-4
"""Single precision, and sums in another order."""

LARGE = {"unet-tiny", "sdxl-tiny", "deepseek-tiny"}
"""Presets whose searches are in `tests/whole/test_families.py` or take minutes."""


def over(meshes, names):
    """Pairs of meshes and names: each name with one of the meshes, in turn, or with all."""
    if os.environ.get("PARTITA_EVERY_MESH"):
        return [(mesh, name) for mesh in meshes for name in names(mesh)]
    turns = enumerate(meshes)
    return [(mesh, name) for n, mesh in turns for name in [*names(mesh)][n :: len(meshes)]]


@pytest.mark.parametrize(("mesh", "kind"), over(["x=3,y=2", "x=2,y=2,z=2"], lambda mesh: RUN))
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


@pytest.mark.parametrize(("mesh", "name"), over(RUN_OVER, lambda mesh: unusual.PROGRAMS))
def test_an_unusual_program(name, mesh, tmp_path):
    runs(unusual.PROGRAMS[name], mesh, tmp_path)


@pytest.mark.parametrize(("mesh", "name"), over(RUN_OVER, unusual.manual))
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
