"""Tilings as rows of numbers: what they say is what was put in, whatever the numbers are."""

from __future__ import annotations

import pickle

import numpy as np

from partita.tiling import LAYOUTS, Tiling

OPS = (((), ()), ((0,), ()))
VALUES = (((1,),), (), ((), (0, 1)))


def test_layouts_come_back():
    tiling = Tiling(OPS, VALUES)
    assert (tiling.ops, tiling.values) == (OPS, VALUES)


def test_equal_layouts_are_equal_tilings():
    assert Tiling(OPS, VALUES) == Tiling(OPS, VALUES)
    assert Tiling(OPS, VALUES) != Tiling(OPS[:1], (OPS[1], *VALUES))
    assert Tiling(OPS, VALUES) != Tiling(OPS, VALUES).pinning(frozenset({(0, 1)}))
    assert hash(Tiling(OPS, VALUES)) == hash(Tiling(OPS, VALUES))


def test_an_axis_splits_places_inside_of_those_that_do_already():
    tiling = Tiling(OPS, VALUES).split(np.array([1, 4]), np.array([0, 1]), 2)
    assert tiling == Tiling((OPS[0], ((0, 2), ())), (*VALUES[:2], ((), (0, 1, 2))))


def test_layouts_that_come_up_later_are_split_as_well():
    before = len(LAYOUTS.all)
    tiling = Tiling(((tuple(range(3, 60)),),), ())
    assert len(LAYOUTS.all) > before
    assert tiling.split(np.array([0]), np.array([0]), 60).ops == (((*range(3, 60), 60),),)


def test_classes_that_change():
    tiling = Tiling(OPS, VALUES).changed({0: ((5,), ())}, {2: ((), ())})
    assert tiling == Tiling((((5,), ()), OPS[1]), (*VALUES[:2], ((), ())))


def test_tilings_go_to_other_processes_where_layouts_have_other_numbers():
    tiling = Tiling(OPS, VALUES, frozenset({(1, 0)}))
    assert b"row" not in pickle.dumps(tiling)
    assert pickle.loads(pickle.dumps(tiling)) == tiling
