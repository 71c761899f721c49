"""The figures of GPUs are those that the measured times give, and predict times kept aside."""

from __future__ import annotations

import re
import sys

import pytest
from tools.gpu import fit

from partita.cost import load
from partita.cost.devices.fitting import fit_collective, fit_products

DEVICES = list(fit.MEASURED_AS)
KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "collective_permute")


def series(device, kind):
    return fit.collectives(fit.FOLDER / "collectives.csv", fit.MEASURED_AS[device])[kind]


def test_every_third_row_is_kept_aside():
    used, aside = fit.split(range(8))
    assert (used, aside) == ([0, 1, 3, 4, 6, 7], [2, 5])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", DEVICES)
def test_a_file_has_the_figures_that_the_used_rows_give(device, kind):
    used = [row for rows in series(device, kind) for row in fit.split(rows)[0]]
    stated = load(device).networks[0].collectives[kind]
    figures = {f: getattr(stated, f) for f in stated.__struct_fields__}
    told = {name: figure.value for name, figure in figures.items() if figure is not None}
    assert told == pytest.approx(fit_collective(used), rel=0.01)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", DEVICES)
def test_rows_kept_aside_are_predicted_better_than_from_datasheets(device, kind):
    aside = [row for rows in series(device, kind) for row in fit.split(rows)[1]]
    measured, hardware = [row.seconds for row in aside], load(device)
    now, before = (
        fit.errors(fit.collective_times(each, aside), measured)
        for each in (hardware, fit.from_datasheets(hardware))
    )
    assert now.median < 0.1 and now.mean < 0.2
    assert now.mean < before.mean / 2 and now.worst < before.worst


@pytest.mark.parametrize("device", list(fit.PRODUCTS_AS))
def test_products_kept_aside_are_predicted(device):
    used, aside = fit.split(
        fit.products(fit.FOLDER / "products.csv", fit.PRODUCTS_AS[device], "bf16")
    )
    hardware = load(device)
    fitted = fit_products(used, fit._bandwidth(hardware))
    assert hardware.products.start.value == pytest.approx(fitted["start"], rel=0.02)
    assert hardware.products.ramp.value == pytest.approx(fitted["ramp"], rel=0.02)
    rate = hardware.flops("bf16") * hardware.efficiency.matmul.value
    assert rate == pytest.approx(fitted["rate"], rel=0.02)
    off = fit.errors(fit.product_times(hardware, aside, "bf16"), [row.seconds for row in aside])
    assert off.mean < 0.07


def test_the_command_prints_both_tables(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fit"])
    fit.main()
    text = capsys.readouterr().out
    assert re.search(r"h100\s*│ all_gather\s*│ 15", text)
    assert re.search(r"b200\s*│ bf16\s*│ 125", text)
