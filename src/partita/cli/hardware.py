"""`partita hardware` and `partita calibrate`: the devices that plans are made for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import jax
import typer

import partita as pt
from partita import cost
from partita.cli.options import JsonOption
from partita.cli.output import show, show_json
from partita.cost.calibrate import calibrate as measure
from partita.cost.devices.stopwatch import Budget
from partita.report import hardware as report
from partita.text import Text, console


def hardware(
    device_type: Annotated[
        str | None, typer.Argument(help="Show this device type, or .toml file, with all sources.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the device types that plans can be made for."""
    names = cost.device_types() if device_type is None else (device_type,)
    known = [cost.load(name) for name in names]
    if as_json:
        show_json(report.as_data(known))
    elif device_type is None:
        show(report.listing(known))
    else:
        show(report.shown(known[0]))


def calibrate(
    path: Annotated[Path, typer.Argument(help="The hardware file to write, ending in .toml.")],
    like: Annotated[
        str | None,
        typer.Option(help="A device type whose networks these have; needed for a single device."),
    ] = None,
    platform: Annotated[
        str | None, typer.Option(help="What to measure (cpu, gpu, tpu); the best at hand.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long to time each operation.")] = 0.3,
) -> None:
    """Measure the devices at hand, and write a hardware file to make plans for them."""
    # "gpu" stands for several backends, all of which JAX would want to find.
    jax.config.update("jax_platforms", None if platform == "gpu" else platform)
    to, budget = console(stderr=True), Budget(seconds)
    try:
        devices = jax.devices(platform)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise pt.HardwareError(f"JAX finds no devices of --platform {platform}: {reason}") from None
    found = measure(path, devices, like, budget, progress=lambda text: to.print(Text(text)))
    show(str(found))
