"""Searches on many axes start from plans of coarser meshes, on which several axes are one."""

from __future__ import annotations

import dataclasses

import pytest

from partita.decisions import ShardClass, ShardColor
from partita.mesh import Mesh
from partita.search import coarse as coarse_module
from partita.search import iterated_search
from partita.search.coarse import coarsened
from partita.search.problem import Problem
from partita.search.protocol import EnoughError
from partita.tiling import LAYOUTS
from searching import mlp, run


def sizes(coarse):
    return coarse.problem.mesh.sizes


def expanded(layout, bundles):
    """A layout of the coarser mesh, as the mesh itself has it."""
    return tuple(tuple(axis for number in axes for axis in bundles[number]) for axes in layout)


def layouts(tiling):
    return [LAYOUTS.all[number] for number in tiling.row.tolist()]


def test_few_axes_are_searched_as_they_are():
    assert not coarsened(mlp(mesh="data=4,model=2"), 2)


def test_of_three_equal_axes_any_two_may_be_one():
    (only,) = coarsened(mlp(mesh="x=2,y=2,z=2"), 2)
    assert sizes(only) == (2, 4)
    assert set(only.ways) == {((0,), (1, 2)), ((1,), (0, 2)), ((2,), (0, 1))}


def test_meshes_with_axes_of_other_sizes_are_others():
    alike, unlike = coarsened(mlp(mesh="x=4,y=4,z=2"), 2)
    assert (sizes(alike), sizes(unlike)) == ((4, 8), (16, 2))
    assert set(alike.ways) == {((0,), (1, 2)), ((1,), (0, 2))}
    assert set(unlike.ways) == {((0, 1), (2,))}


def test_of_four_axes_those_meshes_count_whose_axes_are_most_alike():
    found = coarsened(mlp(mesh="a=4,b=2,c=2,d=2"), 2)
    assert [sorted(sizes(each)) for each in found] == [[4, 8], [2, 16]]


def test_a_plan_lays_out_every_class_as_on_the_coarser_mesh():
    p = mlp(mesh="x=2,y=2,z=2")
    (coarse,) = coarsened(p, 2)
    state = run(iterated_search, coarse.problem, budget=300)
    assert state.moves
    moves = list(coarse.moves(state))
    assert len(moves) == 2 * len(coarse.ways)
    for bundles, exact in zip(coarse.ways, moves[1::2], strict=True):
        wanted = [expanded(layout, bundles) for layout in layouts(state.tiling)]
        assert layouts(p.replay(exact).tiling) == wanted


def test_its_moves_are_made_along_all_axes_that_are_one():
    p = mlp(mesh="x=2,y=2,z=2")
    (coarse,) = coarsened(p, 2)
    first, second = coarse.problem.moves[0], coarse.problem.moves[3]
    assert (first.axis, second.axis) == (0, 1)
    member = p.graph.values[1].members[0]
    local = ShardClass("value", member, 1, 0)
    state = dataclasses.replace(coarse.problem.start, moves=(first, second, local))
    assert next(coarse.moves(state)) == (
        ShardColor(first.color, 0, first.roles),
        *(ShardColor(second.color, axis, second.roles) for axis in (1, 2)),
        *(ShardClass("value", member, axis, 0) for axis in (1, 2)),
    )


def decided(mesh, axis, searched):
    """A problem in which the first move along an axis has been decided already."""
    p = mlp(mesh=mesh)
    tiling = p.tiled(p.start, next(move for move in p.moves if move.axis == axis))
    graph = p.graph
    return Problem(graph.analysis, graph, tiling, p.mesh, p.cost_model, searched)


def test_what_is_decided_along_other_axes_stays():
    p = decided("data=4,x=2,y=2,z=2", 0, searched=(1, 2, 3))
    (coarse,) = coarsened(p, 2)
    assert coarse.problem.mesh == Mesh.of({"data": 4, "x": 2, "y+z": 4})
    assert layouts(coarse.problem.start.tiling) == layouts(p.start.tiling)
    state = run(iterated_search, coarse.problem, budget=300)
    for bundles, exact in zip(coarse.ways, list(coarse.moves(state))[1::2], strict=True):
        wanted = [expanded(layout, bundles) for layout in layouts(state.tiling)]
        assert layouts(p.replay(exact).tiling) == wanted


def test_there_is_none_if_something_has_one_of_the_axes():
    assert not coarsened(decided("x=2,y=2,z=2", 0, searched=(0, 1, 2)), 2)


def test_there_is_none_if_only_some_colors_are_moved():
    p = mlp(mesh="x=2,y=2,z=2")
    some = Problem(
        p.graph.analysis, p.graph, p.start.tiling, p.mesh, p.cost_model, p.axes, {p.moves[0].color}
    )
    assert not coarsened(some, 2)


def test_a_mesh_that_cannot_be_laid_on_the_networks_is_left_out():
    (only,) = coarsened(mlp(mesh="x=16@ici,y=16@ici,z=2"), 2)
    assert sizes(only) == (256, 2)  # 32 devices do not go beside 16 on a network of 256


def test_a_search_ends_no_worse_than_the_plans_of_coarser_meshes():
    p = mlp(mesh="x=2,y=2,z=2")
    (coarse,) = coarsened(p, 2)
    state = run(iterated_search, coarse.problem, budget=3000)
    read = [p.replay(moves) for moves in coarse.moves(state)]
    found = run(iterated_search, mlp(mesh="x=2,y=2,z=2"), budget=9000)
    assert all(p.time(found) <= p.time(each) * (1 + 1e-12) for each in read)


def elsewhere(mesh, budget=9000):
    """How many plans of the MLP a search evaluates on other meshes than its own."""
    p = mlp(mesh=mesh)
    run(iterated_search, p, budget=budget)
    assert p.evaluations <= budget
    return p.evaluations - (len(list(p.states)) - 1)


def test_evaluations_on_coarser_meshes_count():
    assert elsewhere("data=4") == 0
    assert elsewhere("data=2,model=2") > 20
    assert elsewhere("x=2,y=2,z=2") > 100


@pytest.mark.parametrize("mesh", ["data=4,model=2", "x=4,y=4,z=2"])
@pytest.mark.parametrize("budget", [100, 300])
def test_a_third_of_the_budget_is_for_the_mesh_itself(mesh, budget):
    assert 20 < elsewhere(mesh, budget) <= budget * 2 / 3 + 1


def test_all_axes_may_be_one():
    (only,) = coarsened(mlp(mesh="data=4,model=2"), 1)
    assert sizes(only) == (8,)
    assert only.ways == (((0, 1),),)
    assert not coarsened(mlp(mesh="data=8"), 0)


def test_meshes_that_become_the_same_one_share_its_problem():
    known = {}
    alike, unlike = coarsened(mlp(mesh="x=4,y=4,z=2"), 2, known)
    ((first,), (second,)) = (coarsened(each.problem, 1, known) for each in (alike, unlike))
    assert first.problem is second.problem
    assert first.ways == second.ways == (((0, 1),),)
    assert set(known) == {each.problem.mesh for each in (alike, unlike, first)}


def test_a_mesh_is_searched_once():
    """Plans along all axes as one are looked for on the way to each of the meshes of two axes."""
    p, seen = mlp(mesh="x=4,y=4,z=2"), set()
    made = coarse_module.Problem

    def noted(*args):
        problem = made(*args)
        if len(problem.axes) == 1:
            seen.add(problem)
        return problem

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coarse_module, "Problem", noted)
        run(iterated_search, p, budget=9000)
    assert len(seen) == 1


def test_a_search_that_is_interrupted_there_has_its_best_plan():
    p = mlp(mesh="x=2,y=2,z=2")

    def enough(done, best):
        if done > 200:
            raise EnoughError

    with pytest.raises(EnoughError):
        iterated_search(p, 9000, 0, enough)
    assert p.best.moves
    assert p.time(p.best) < p.time(p.start)
