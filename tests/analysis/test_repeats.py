"""Repeats: blocks of instructions that follow themselves, wired alike."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.analysis.repeats import Read, repeats


def program(text):
    """Instructions such as `c = f a b`, as keys, reads and makes; names are numbers."""
    keys, reads, makes = [], [], []
    for line in text.split(";"):
        made, _, rest = line.partition("=")
        kind, *read = rest.split()
        keys.append((kind, len(read)))
        reads.append([int(r) for r in read])
        makes.append([int(m) for m in made.split()])
    return keys, reads, makes


def found(text, least=1):
    return [(r.start, r.period, r.count) for r in repeats(*program(text), least=least)]


CHAIN = ";".join(f"{i} = f {i - 1}" for i in range(1, 7))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CHAIN, [(0, 1, 6)]),
        ("1 = f 0; 2 = g 1; 3 = f 2; 4 = g 3", [(0, 2, 2)]),
        ("1 = a 0; 2 = f 1; 3 = f 2; 4 = b 3", [(1, 1, 2)]),
        ("1 = f 0; 2 = g 1; 3 = h 2", []),
        # The same each time; or numbered up; or carried from the one before.
        ("1 = f 0; 2 = f 0; 3 = f 0", [(0, 1, 3)]),
        ("10 = f 0; 11 = f 3; 12 = f 6", [(0, 1, 3)]),
        ("10 = f 0; 11 = f 10; 12 = f 11", [(0, 1, 3)]),
        # Wired otherwise: the third reads what the first has made, not the second.
        ("10 = f 0; 11 = f 10; 12 = f 10", [(0, 1, 2)]),
        ("10 = f 0; 11 = f 3; 12 = f 9; 13 = f 15", [(1, 1, 3)]),
        ("1 = f 0; 2 = g 1; 3 = f 0; 4 = g 1", []),
        # What is made has to be numbered up evenly.
        ("10 = f 0; 11 = f 0; 13 = f 0", [(0, 1, 2)]),
    ],
)
def test_what_repeats(text, expected):
    assert found(text) == expected


def test_how_operands_go_on():
    (repeat,) = repeats(*program("10 = f 0 1 9; 11 = f 0 3 10; 12 = f 0 5 11"), least=1)
    assert repeat.reads == ((Read(0, 0, 0), Read(1, 3, 2), Read(9, 10, 1)),)
    (repeat,) = repeats(*program("10 = f 3; 11 = f 10; 12 = f 11"), least=1)
    assert repeat.reads == ((Read(3, 10, 1),),)
    assert not repeat.reads[0][0].regular
    assert repeat.stride == 1


def test_a_repeat_has_to_save_something():
    assert found(CHAIN, least=5) == [(0, 1, 6)]
    assert found(CHAIN, least=6) == []


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([0, 1, 0, 0, 1, 0, 0, 1, 0], [(0, 3, 3)]),
        # What is inside of an instruction goes with it: at the beginning,
        ([1, 0, 1, 1, 0, 1, 1, 0, 1, 1], [(1, 3, 3)]),
        # and at the end, where something is left inside of the last one.
        ([0, 1, 1, 0, 1, 1, 0, 1, 1, 2], []),
        ([0, 1, 1, 0, 1, 1, 0, 1, 1, 0], [(0, 3, 3)]),
    ],
)
def test_what_is_inside_of_an_instruction_stays_there(levels, expected):
    none = [()] * len(levels)
    keys = [(place % 3, level) for place, level in enumerate(levels)]
    found = repeats(keys, none, none, 3, levels)
    assert [(r.start, r.period, r.count) for r in found] == expected


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.sampled_from("fgh"), st.integers(0, 5)), max_size=24), st.data())
def test_repeats_say_how_every_instruction_reads(instructions, data):
    """Written out again from its repeats, the sequence is what it was."""
    keys, reads, makes = [], [], []
    for i, (kind, back) in enumerate(instructions):
        keys.append(kind)
        reads.append([100 + max(i - back, 0) - 1])
        makes.append([100 + i])
    for repeat in repeats(keys, reads, makes, least=1):
        for k in range(repeat.count):
            for place in range(repeat.period):
                at = repeat.start + k * repeat.period + place
                assert keys[at] == keys[repeat.start + place]
                assert makes[at] == [makes[repeat.start + place][0] + k * repeat.stride]
                (read,) = repeat.reads[place]
                expected = read.first if k == 0 else read.second + (k - 1) * read.step
                assert reads[at] == [expected]
