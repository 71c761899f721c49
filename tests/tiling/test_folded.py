"""Repeated structure in programs is shown once, and nothing that differs is shown as equal."""

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.tiling import LoopNests, assignment
from partita.tiling.show import Line, _folded, _plain, progress, show


def line(text, defines=(), reads=(), depth=0, goes_on=False):
    """A line of an operation: `f` that defines and reads these values."""
    holes = ["%{}"] * (len(defines) + len(reads))
    template = f"{', '.join(holes[: len(defines)])} = {text}({', '.join(holes[len(defines) :])})"
    return Line(template, (*defines, *reads), len(defines), len(reads), None, depth, goes_on)


def chain(texts, times, first=100, read=0):
    """`times` iterations of operations that each read the result of the one before."""
    lines, value = [], first
    for _ in range(times):
        for text in texts:
            lines.append(line(text, [value], [read]))
            read, value = value, value + 1
    return lines


def folds(lines):
    """How long the repetitions are, in lines, and how often they are made."""
    found, text = [], _folded(lines)
    for at, head in enumerate(text):
        if times := re.fullmatch(r"x (\d+), .*", head):
            inside = itertools.takewhile(lambda each: each.startswith("  "), text[at + 1 :])
            found.append((len(list(inside)), int(times[1])))
    return found


def unfolded(text):
    """Folded lines written out again, every number put in."""
    lines, rest = [], list(text)
    while rest:
        head = rest.pop(0)
        found = re.fullmatch(r"( *)x (\d+), i = 0 \.\.\. \d+", head)
        if not found:
            lines.append(head)
            continue
        indent, times = found[1] + "  ", int(found[2])
        inside = list(itertools.takewhile(lambda each, by=indent: each.startswith(by), rest))
        del rest[: len(inside)]
        lines += [filled(each[2:], i, times) for i in range(times) for each in inside]
    return lines


def filled(text, i, times):
    """A line of a repetition as it is in one iteration."""
    return re.sub(r"\{(.*?)\}", lambda match: number(match[1], i, times), text)


def number(formula, i, times):
    """The number that a formula, or a list, has in an iteration."""
    if ", then " in formula:
        first, formula = formula.split(", then ")
        first = first.split(", ")
        if i < len(first):
            return first[i]
    elif ", at last " in formula:
        formula, last = formula.split(", at last ")
        last = last.split(", ")
        if i >= times - len(last):
            return last[i - times + len(last)]
    elif ", " in formula:
        return formula.split(", ")[i]
    start, step = re.fullmatch(r"(\d+(?!\d*i))?(?:\+?(-?\d*)i)?", formula).groups()
    step = {"": 1, "-": -1, None: 0}[step] if step in ("", "-", None) else int(step)
    return str(int(start or 0) + step * i)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([7, 7, 7], "7"),
        ([7, 9, 11], "{7+2i}"),
        ([7, 8, 9], "{7+i}"),
        ([0, 1, 2], "{i}"),
        ([9, 6, 3], "{9-3i}"),
        ([9, 8, 7], "{9-i}"),
        ([1, 7, 9, 11], "{1, then 5+2i}"),
        ([1, 7, 7, 7], "{1, then 7}"),
        ([1, 4, 8, 8, 8], "{1, 4, then 8}"),
        ([7, 9, 11, 1], "{7+2i, at last 1}"),
        ([3, 1, 4, 1, 5, 9], "{3, 1, 4, 1, 5, 9}"),
    ],
)
def test_numbers_go_on(numbers, text):
    assert progress(numbers) == text
    assert [number(text.strip("{}"), i, len(numbers)) for i in range(len(numbers))] == [
        str(n) for n in numbers
    ]


def test_a_chain_repeats():
    assert _folded(chain("abcd", 5)) == [
        "x 5, i = 0 ... 4",
        "  %{100+4i} = a(%{0, then 99+4i})",
        "  %{101+4i} = b(%{100+4i})",
        "  %{102+4i} = c(%{101+4i})",
        "  %{103+4i} = d(%{102+4i})",
    ]


def test_few_lines_are_not_folded():
    lines = chain("abc", 2)
    assert _folded(lines) == list(map(_plain, lines))


def test_another_operation_ends_a_repetition():
    lines = chain("abcd", 4) + chain("abxd", 1, 116, 115) + chain("abcd", 4, 120, 119)
    assert lines[18].template == "%{} = x(%{})"
    assert folds(lines) == [(4, 4), (4, 4)]
    assert unfolded(_folded(lines)) == list(map(_plain, lines))


def test_a_skip_ends_a_repetition():
    """The sixth layer reads what the fourth made, not the fifth."""
    lines = chain("abcd", 5) + chain("abcd", 5, 120, 115)
    assert folds(lines) == [(4, 5), (4, 5)]


def test_loops_are_folded_whole():
    one = [
        line("carry", [0], [1]),
        line("while", [], [2], goes_on=True),
        line("compare", [2], [0], depth=1),
        line("do", goes_on=True),
        line("add", [1], [0], depth=1),
    ]
    lines = []
    for each in range(6):
        for at in one:
            numbers = tuple(n + 3 * each for n in at.numbers)
            lines.append(
                Line(at.template, numbers, at.defines, at.reads, None, at.depth, at.goes_on)
            )
    text = _folded(lines[1:])
    assert text[:4] == list(map(_plain, lines[1:5]))
    assert text[4].startswith("x 5, ")
    assert text[5].startswith("  %{3+3i} = carry(")
    assert len(text) == 4 + 1 + 5
    assert unfolded(text) == list(map(_plain, lines[1:]))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.lists(st.integers(1, 6), max_size=2)), max_size=60
    ),
    st.integers(1, 5),
)
def test_what_is_folded_can_be_written_out_again(unit, times):
    lines = []
    for text, back in unit * times:
        value = 10 + len(lines)
        lines.append(line(text, [value], [value - b for b in back]))
    assert unfolded(_folded(lines)) == list(map(_plain, lines))


def test_more_layers_are_no_more_lines(gpt_bench):
    def shown(layers):
        bench = gpt_bench(layers, "x=2")
        tiling = bench.tile(("batch['tokens']", 0, "x"))
        nests = LoopNests(bench.program, bench.mesh, assignment(bench.graph, tiling))
        return len(bench.program.operations), show(nests).splitlines()

    (three, short), (six, long) = shown(3), shown(6)
    assert six > 1.8 * three
    assert len(long) == len(short)
    assert sum(line.lstrip().startswith("x 6, ") for line in long) >= 10
