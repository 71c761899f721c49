"""Arrays that do not fit together: the inner loops in C say so, and touch nothing else.

`make test-native` runs these with a build that stops at any byte outside of an array.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partita import native
from partita.search.bounds import messages
from partita.search.bounds.messages import Edge, Energy, Messages
from partita.sparse import Rows

pytestmark = pytest.mark.skipif(native.add_rows is None, reason="installed without a C compiler")

REFUSED = (ValueError, IndexError, TypeError, BufferError)
HUGE = 2**63 - 1


def integers(*numbers):
    return np.array(numbers, dtype=np.int64)


def rows(**changes):
    """Three rows of 2, 0 and 3 items in 4 columns, and what `add_rows` adds of them."""
    given = {
        "out": np.zeros(4),
        "starts": integers(0, 2, 2, 5),
        "columns": integers(0, 1, 2, 3, 3),
        "values": np.arange(5.0),
        "rows": integers(2, 0),
        "factors": np.ones(2),
    }
    return list((given | changes).values())


def differences(**changes):
    given = {
        "out": np.zeros(4, dtype=np.uint64),
        "starts": integers(0, 2, 2, 5),
        "columns": integers(0, 1, 2, 3, 3),
        "figures": np.arange(4, dtype=np.uint64),
        "old": np.zeros(3, dtype=np.int32),
        "new": np.array([1, 2, 3], dtype=np.int32),
    }
    return list((given | changes).values())


def reaching(**changes):
    """A graph of three nodes, 0 -> 1 -> 2 and 1 -> 0."""
    given = {
        "found": np.zeros(3, dtype=bool),
        "starts": integers(0, 1, 3, 3),
        "columns": integers(1, 2, 0),
        "can": np.ones(3, dtype=bool),
        "seeds": integers(0),
    }
    return list((given | changes).values())


def passing(**changes):
    """Two nodes of 2 and 3 choices, and an edge between them."""
    given = {
        "upward": False,
        "first": integers(0, 2, 5),
        "nodes": np.arange(5.0),
        "ends": integers(0, 1),
        "start": integers(0, 6),
        "costs": np.arange(6.0),
        "after_start": integers(0, 1, 1),
        "after": integers(0),
        "before_start": integers(0, 0, 1),
        "before": integers(0),
        "forward_start": integers(0, 3),
        "forward": np.zeros(3),
        "backward_start": integers(0, 2),
        "backward": np.zeros(2),
        "choices": integers(-1, -1),
    }
    return list((given | changes).values())


TAKES = {
    "add_rows": rows,
    "add_differences": differences,
    "reach": reaching,
    "pass_messages": passing,
}


@pytest.mark.parametrize("name", TAKES)
def test_what_fits_together_is_taken(name):
    getattr(native, name)(*TAKES[name]())


STARTS = {
    "begins before the array": (integers(-1, 2, 2, 5), "row 0 begins at -1 and ends at 2"),
    "ends before it begins": (integers(0, 2, 9, 5), "row [12] begins at [29] and ends at [59]"),
    "begins far before it": (integers(-HUGE, 2, 2, 5), f"row 0 begins at -{HUGE} and ends at 2"),
    "is longer than the array": (integers(0, HUGE, 2, 5), f"row 0 begins at 0 and ends at {HUGE}"),
    "ends behind the array": (integers(0, 2, 2, 6), "at least 6 items, got 5"),
}


@pytest.mark.parametrize("kind", STARTS)
@pytest.mark.parametrize("name", ["add_rows", "add_differences", "reach"])
def test_a_row_that_is_not_within_its_items(name, kind):
    starts, message = STARTS[kind]
    given = {"starts": starts} if name != "reach" else {"starts": starts, "seeds": integers(0, 2)}
    if name == "reach":
        given["columns"] = integers(0, 0, 1, 1, 2)
    with pytest.raises(ValueError, match=message):
        getattr(native, name)(*TAKES[name](**given))


def test_values_may_be_no_fewer_than_columns():
    with pytest.raises(ValueError, match="at least 5 items, got 4"):
        native.add_rows(*rows(values=np.ones(4)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first": integers(0, 0, 5)}, "node 0 has no choices"),
        ({"first": integers(0, 6, 5)}, "node 0 begins at 0 and ends at 6, of 5"),
        ({"first": integers(-2, 2, 5)}, "node 0 begins at -2"),
        ({"ends": integers(0, 2)}, "edge 0 is between nodes 0 and 2, of 2"),
        ({"ends": integers(-1, 1)}, "edge 0 is between nodes -1 and 1"),
        ({"ends": integers(1, 1)}, "edge 0 is between nodes 1 and 1"),
        ({"ends": integers(1, 0)}, "edge 0 is between nodes 1 and 0"),
        ({"start": integers(1, 6)}, "edge 0 has 6 costs from 1 on, of 6"),
        ({"start": integers(-6, 6)}, "edge 0 has 6 costs from -6 on"),
        ({"start": integers(HUGE, 6)}, f"edge 0 has 6 costs from {HUGE} on"),
        ({"costs": np.ones(5), "start": integers(0, 5)}, "edge 0 has 6 costs from 0 on, of 5"),
        ({"forward_start": integers(1, 3)}, "edge 0 has 3 messages from 1 on, of 3"),
        ({"backward_start": integers(1, 2)}, "edge 0 has 2 messages from 1 on, of 2"),
        ({"after": integers(1)}, "edge 1 is listed for node 0"),
        ({"before": integers(-1)}, "edge -1 is listed for node 1"),
        ({"after_start": integers(0, 0, 1)}, "edge 0 is listed for node 1, and is none of it"),
        ({"before_start": integers(0, 1, 1)}, "edge 0 is listed for node 0, and is none of it"),
        ({"after_start": integers(0, 1, 2)}, "node 1 begins at 1 and ends at 2, of 1"),
        ({"before_start": integers(0, 2, 1)}, "node 0 begins at 0 and ends at 2, of 1"),
        ({"choices": integers(-1)}, "at least 2 items, got 1"),
    ],
)
@pytest.mark.parametrize("upward", [True, False])
def test_an_energy_that_contradicts_itself(changes, message, upward):
    with pytest.raises(ValueError, match=message):
        native.pass_messages(*passing(upward=upward, **changes))


def test_what_is_written_shares_no_memory_with_what_is_read():
    shared = integers(0, 2, 2, 5)
    with pytest.raises(ValueError, match="shares memory"):
        native.add_differences(*differences(out=shared, starts=shared))
    with pytest.raises(ValueError, match="shares memory"):
        native.pass_messages(*passing(first=shared[:3], choices=shared[1:]))
    with pytest.raises(ValueError, match="shares memory"):
        native.pass_messages(*passing(ends=shared[:2], forward=shared[1:].view(np.float64)))
    native.add_differences(*differences(old=(same := np.ones(3, np.int32)), new=same))


def unaligned(array):
    return np.frombuffer(b"." + array.tobytes(), dtype=np.uint8)[1:].view(array.dtype)


@pytest.mark.parametrize("name", TAKES)
def test_items_are_aligned(name):
    given = TAKES[name]()
    place = next(n for n, each in enumerate(given) if isinstance(each, np.ndarray) and n)
    given[place] = unaligned(given[place])
    with pytest.raises(ValueError, match="not aligned"):
        getattr(native, name)(*given)


def test_what_else_is_no_array_of_such_items():
    for wrong in (np.zeros((2, 4))[:, ::2], memoryview(b"12345678"), b"", 3, None, [1]):
        with pytest.raises(REFUSED):
            native.add_rows(*rows(out=wrong))
    with pytest.raises(TypeError, match="int64"):
        native.add_rows(*rows(starts=integers(0, 2, 2, 5).astype(">i8")))


# ------------------------------------------------------------------------------ at random

NUMBERS = st.one_of(st.integers(-2, 8), st.sampled_from([HUGE, -HUGE - 1, 2**31, 2**62, -1]))


@st.composite
def damaged(draw, name):
    """What a function takes, with a few items of index arrays changed, or some left out."""
    given = [each.copy() if isinstance(each, np.ndarray) else each for each in TAKES[name]()]
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(given) - 1))
        array = given[place]
        if not isinstance(array, np.ndarray) or not array.size:
            continue
        if array.dtype.kind == "i" and draw(st.booleans()):
            number = draw(NUMBERS) if array.itemsize == 8 else draw(st.integers(-2, 8))
            array[draw(st.integers(0, array.size - 1))] = number
        else:
            given[place] = array[: draw(st.integers(0, array.size))].copy()
    return given


@pytest.mark.parametrize("name", TAKES)
def test_arrays_that_are_damaged_at_random(name):
    taken = 0

    @settings(
        max_examples=250,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(damaged(name))
    def run(arrays):
        nonlocal taken
        try:
            getattr(native, name)(*arrays)
        except REFUSED:
            return
        taken += 1

    run()
    assert 0 < taken < 250


@settings(max_examples=50, deadline=None, database=None, derandomize=True)
@given(st.lists(st.lists(st.integers(0, 7), max_size=5), min_size=1, max_size=8), st.data())
def test_random_rows_are_added_and_reached_as_in_python(lists, data):
    starts = [0, *np.cumsum([len(each) for each in lists]).tolist()]
    columns = np.array([c % len(lists) for each in lists for c in each], dtype=np.int64)
    matrix = Rows(starts, columns, np.arange(len(columns), dtype=np.uint64))
    numbers = st.lists(st.integers(0, len(lists) - 1), max_size=6)
    chosen = np.array(data.draw(numbers), dtype=np.int64)
    added = np.zeros(len(lists), dtype=np.uint64)
    matrix.add(added, chosen, np.ones(len(chosen), dtype=np.uint64))
    expected = np.zeros_like(added)
    for row in chosen:
        part = slice(starts[row], starts[row + 1])
        np.add.at(expected, columns[part], np.arange(part.start, part.stop, dtype=np.uint64))
    np.testing.assert_array_equal(added, expected)
    can = np.array(data.draw(st.lists(st.booleans(), min_size=len(lists), max_size=len(lists))))
    found, waiting = np.zeros(len(lists), dtype=bool), [row for row in chosen if can[row]]
    while waiting:
        row = waiting.pop()
        if not found[row]:
            found[row] = True
            waiting += [c for c in columns[starts[row] : starts[row + 1]] if can[c]]
    np.testing.assert_array_equal(matrix.reached(can, chosen), found)


@settings(
    max_examples=30,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(0, 2**31), st.data())
def test_random_energies_are_passed_as_in_python(monkeypatch, sizes, seed, data):
    rng = np.random.default_rng(seed)
    pairs = [(a, b) for b in range(len(sizes)) for a in range(b)]
    ends = data.draw(st.lists(st.sampled_from(pairs), max_size=8)) if pairs else []
    energy = Energy.joined(
        [rng.random(size) for size in sizes],
        [Edge(a, b, rng.random((sizes[a], sizes[b]))) for a, b in ends],
    )
    found = Messages(energy).run(energy)
    with monkeypatch.context() as without:
        without.setattr(messages, "pass_messages", None)
        assert Messages(energy).run(energy) == found
