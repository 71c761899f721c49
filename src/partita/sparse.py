"""Rows of a sparse matrix; selected ones are added to an array at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partita.native import add_differences, add_rows, reach


class Rows:
    """Rows of a sparse matrix, which may become more. Numbers are of 64 bits, floats or not."""

    def __init__(self, starts: Sequence[int], columns: np.ndarray, values: np.ndarray) -> None:
        """Takes where each row begins and the last ends, and what is in them, row by row."""
        self._count = len(starts) - 1
        self._starts = np.array(starts, dtype=np.int64)
        self._columns, self._values = columns.astype(np.int64), np.array(values)

    def __len__(self) -> int:
        return self._count

    def append(self, columns: np.ndarray, values: np.ndarray) -> int:
        """The number of one more row, with these values in these columns."""
        number, start = self._count, int(self._starts[self._count])
        self._count, end = number + 1, start + len(columns)
        if self._count >= len(self._starts):
            self._starts = np.pad(self._starts, (0, len(self._starts)))
        if end > len(self._columns):
            more = end + len(self._columns)
            self._columns, self._values = (
                np.pad(each, (0, more)) for each in (self._columns, self._values)
            )
        self._starts[self._count] = end
        self._columns[start:end], self._values[start:end] = columns, values
        return number

    def add(self, out: np.ndarray, rows: np.ndarray, factors: np.ndarray) -> None:
        """Adds some rows to an array, each times a factor."""
        starts = self._starts[: self._count + 1]
        if add_rows is not None:
            add_rows(out, starts, self._columns, self._values, rows, factors)
            return
        first = starts[rows]
        counts = starts[rows + 1] - first
        ends = counts.cumsum()
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first + counts - ends, counts)
        values = self._values[places] * np.repeat(factors, counts)
        np.add.at(out, self._columns[places], values)

    def add_differences(
        self, out: np.ndarray, figures: np.ndarray, old: np.ndarray, new: np.ndarray
    ) -> None:
        """Adds every row times what the figure of its new number is more than that of its old one.

        Args:
          out: 64-bit integers without sign, as the values are, which are all 1.
          figures: by number.
          old: a number of every row.
          new: another.
        """
        if add_differences is not None:
            starts = self._starts[: self._count + 1]
            add_differences(out, starts, self._columns, figures, old, new)
            return
        rows = np.flatnonzero(old != new)
        self.add(out, rows, figures[new[rows]] - figures[old[rows]])

    def reached(self, can: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        """Returns whether each row can be reached from some others, through rows that `can` allows.

        Columns are the numbers of rows here.

        Args:
          can: whether each row can be reached.
          seeds: the numbers of rows to begin with.
        """
        found = np.zeros(len(can), dtype=bool)
        starts = self._starts[: self._count + 1]
        if reach is not None:
            reach(found, starts, self._columns, can, seeds)
            return found
        start = np.repeat(np.arange(self._count), np.diff(starts))
        end = self._columns[: starts[-1]]
        found[seeds] = can[seeds]
        before = -1
        while (count := int(np.count_nonzero(found))) > before:
            before = count
            found[end[found[start]]] = True
            found &= can
        return found
