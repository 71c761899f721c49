"""The minimum of a pairwise energy as an integer program, as in Alpa (Zheng et al., 2022), and its
linear relaxation, both by HiGHS. What message passing is held against: slow, and exact."""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from partita.search.bounds.messages import Energy


@dataclasses.dataclass(frozen=True)
class Solved:
    """What came of it."""

    value: float
    """The least energy found; of a relaxation, its optimum. Infinite if there was no time."""
    bound: float
    """No choices have less."""
    choices: tuple[int, ...]
    """Empty for a relaxation, and if there was no time."""


def solve(energy: Energy, seconds: float, relaxed: bool = False) -> Solved:
    """The least energy.

    Args:
      energy: what to minimize.
      seconds: when to give up.
      relaxed: whether choices may be mixed.
    """
    firsts = np.cumsum([0, *map(len, energy.nodes)])
    pairs = np.cumsum([firsts[-1], *(edge.cost.size for edge in energy.edges)])
    rows, columns, values, right = list[np.ndarray](), list[np.ndarray](), list[np.ndarray](), []
    count = 0

    def add(row: np.ndarray, column: np.ndarray, value: float) -> None:
        rows.append(row.ravel())
        columns.append(column.ravel())
        values.append(np.full(row.size, value))

    for number, costs in enumerate(energy.nodes):
        add(np.full(len(costs), count), firsts[number] + np.arange(len(costs)), 1.0)
        right.append(np.ones(1))
        count += 1
    for edge, start in zip(energy.edges, pairs, strict=False):
        pair = start + np.arange(edge.cost.size).reshape(edge.cost.shape)
        for node, sums in ((edge.first, pair), (edge.second, pair.T)):
            at = count + np.arange(len(sums))
            add(np.repeat(at[:, None], sums.shape[1], axis=1), sums, 1.0)
            add(at, firsts[node] + np.arange(len(sums)), -1.0)
            right.append(np.zeros(len(sums)))
            count += len(sums)
    matrix = sparse.csr_array(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))),
        shape=(count, pairs[-1]),
    )
    cost = np.concatenate([*energy.nodes, *(edge.cost.ravel() for edge in energy.edges)])
    scale = float(np.median(cost[cost > 0])) if (cost > 0).any() else 1.0
    whole = np.zeros(pairs[-1])
    whole[: firsts[-1]] = 0 if relaxed else 1
    equal = np.concatenate(right)
    found = milp(
        cost / scale,
        constraints=LinearConstraint(matrix, equal, equal),
        bounds=Bounds(0, 1),
        integrality=whole,
        options={"time_limit": seconds},
    )
    if found.x is None:
        return Solved(float("inf"), 0.0, ())
    bound = found.fun if relaxed else found.mip_dual_bound
    chosen = tuple(
        int(found.x[start : start + len(costs)].argmax())
        for start, costs in zip(firsts, energy.nodes, strict=False)
    )
    return Solved(found.fun * scale, bound * scale, () if relaxed else chosen)
