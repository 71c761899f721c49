"""Figures that are fitted to times are those that the times were made with."""

from __future__ import annotations

import math

import pytest

from partita.cost.devices.fitting import TimedCollective, TimedProduct, fit_collective, fit_products

SIZES = [2**power for power in range(15, 31)]


def gathered(size, devices):
    sent = (devices - 1) / devices * size
    return 10e-6 + 2e-6 * (devices - 1) + sent / 4e11 + 2 * math.sqrt(5e-6 * sent / 4e11)


def test_start_step_bandwidth_and_chunk_of_an_all_gather():
    rows = [TimedCollective("all_gather", n, s, gathered(s, n)) for n in (2, 4, 8) for s in SIZES]
    figures = {"start": 10e-6, "step": 2e-6, "bandwidth": 4e11, "chunk": 5e-6}
    assert fit_collective(rows) == pytest.approx(figures, rel=1e-3)


def test_with_one_size_of_groups_steps_are_a_part_of_the_start():
    rows = [TimedCollective("all_gather", 8, size, gathered(size, 8)) for size in SIZES]
    figures = {"start": 24e-6, "bandwidth": 4e11, "chunk": 5e-6}
    assert fit_collective(rows) == pytest.approx(figures, rel=1e-3)


def test_times_far_off_hardly_matter():
    rows = [TimedCollective("all_gather", n, s, gathered(s, n)) for n in (2, 4, 8) for s in SIZES]
    slow = TimedCollective("all_gather", 4, 2**20, 5 * gathered(2**20, 4))
    found = fit_collective([*rows, slow])
    assert found["bandwidth"] == pytest.approx(4e11, rel=0.02)
    assert found["start"] == pytest.approx(10e-6, rel=0.1)


def test_few_channels_of_a_permutation():
    def permuted(size):
        return 10e-6 + max(size / 2.5e11, min(size, 2**26) / 6e10)

    rows = [TimedCollective("collective_permute", 8, size, permuted(size)) for size in SIZES]
    figures = {"start": 10e-6, "bandwidth": 2.5e11, "narrow": 6e10, "narrow_bytes": 2.0**26}
    assert fit_collective(rows) == pytest.approx(figures, rel=0.01)


def test_start_ramp_and_rate_of_products():
    sizes = [(m, n, k) for m in (256, 1024, 4096) for n in (256, 4096) for k in (128, 512, 4096)]
    rows = [TimedProduct(1, m, n, k, 0, 6e-6 + 2 * m * n * (k + 100) / 8e14) for m, n, k in sizes]
    figures = {"start": 6e-6, "ramp": 100, "rate": 8e14}
    assert fit_products(rows, 3e12) == pytest.approx(figures, rel=0.01)
