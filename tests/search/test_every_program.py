"""Every program is searched by the default search: each operation, random programs, and kinds of
programs that models rarely have. Nothing is run here: `tests/whole/test_searched.py` runs them,
searches them over more meshes, and searches whole models.
"""

from __future__ import annotations

import pytest

import partita as pt
import unusual
from fuzzing.programs import program
from searched import search_and_check
from test_operations import RUN, example

MESH = "x=2,y=2"


@pytest.mark.parametrize("kind", RUN)
def test_an_operation_is_searched(kind, tmp_path):
    fn, arguments = example(kind, tmp_path)
    types = () if isinstance(fn, pt.Module) else arguments
    search_and_check(fn, types, MESH, tmp_path)


@pytest.mark.parametrize("name", unusual.PROGRAMS)
def test_an_unusual_program_is_searched(name, tmp_path):
    search_and_check(*unusual.PROGRAMS[name], MESH, tmp_path)


@pytest.mark.parametrize("name", unusual.manual(MESH))
def test_a_shard_map_is_searched(name, tmp_path):
    search_and_check(*unusual.manual(MESH)[name], MESH, tmp_path)


@pytest.mark.parametrize("number", range(4))
def test_a_random_program_is_searched(number, tmp_path):
    made = program(number)
    search_and_check(made.fn, (made.arguments(),), MESH, tmp_path, seed=number)


@pytest.mark.parametrize("mesh", ["x=1", "x=5", "x=1,y=2", "x=2,y=2,z=2"])
def test_other_meshes_are_searched(mesh, tmp_path):
    search_and_check(*unusual.PROGRAMS["a tied table"], mesh, tmp_path)


def test_nothing_is_tried_along_axes_of_one_device():
    fn, types = unusual.PROGRAMS["a tied table"]
    plan = pt.plan(fn, *types, mesh="x=1", hardware="cpu", tactics=[])
    assert plan.then(pt.AutomaticPartition()).history[-1].search.evaluations == 0
