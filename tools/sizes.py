"""`make models`: how large the built-in models are, as `partita models` lists them.

Every preset is traced and imported on abstract arguments; its parameters, operations and FLOPs go
into `src/partita/models/sizes.toml`. A step has the operations that JAX lowers it to, so that
another version of JAX may count a few others.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import jax
import typer
from rich.console import Console

from partita import models
from partita.cli import run
from partita.cost.kernels.products import points
from partita.models.sizes import FILE, Size
from partita.program.ir import Program
from partita.stablehlo.importer import import_stablehlo
from tools.bench import lowered_text

HEAD = f"""\
# Sizes of the built-in models: parameters; operations of the program that a step is (those of a
# loop once); FLOPs of its matrix products and convolutions, forward and backward, what is computed
# again included. Written by `make models`, with JAX {jax.__version__}.
"""


FLOPS = ".3e"
"""How FLOPs are written."""


def parameters(model: models.Model) -> int:
    """What is learned, in numbers of elements."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(model.args[0]["params"]))


def flops(program: Program) -> float:
    """Of the matrix products and convolutions of a step, two for each multiplication."""
    return sum(
        2.0 * op.times * points(op, program.values)
        for op in program.operations
        if op.traits.product
    )


def measured(preset: str) -> Size:
    """Traces and imports a preset."""
    model = models.build(preset)
    program = import_stablehlo(lowered_text(model))
    rounded = float(f"{flops(program):{FLOPS}}")
    computing = sum(bool(op.results) for op in program.operations)  # the rest only orders them
    return Size(parameters(model), computing, rounded)


def written(sizes: dict[str, Size]) -> str:
    """The file that holds them."""
    lines = [
        f'"{preset}" = {{ parameters = {size.parameters}, operations = {size.operations}, '
        f"flops = {size.flops:{FLOPS}} }}"
        for preset, size in sizes.items()
    ]
    return "\n".join([HEAD, *lines, ""])


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def command(
    presets: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL...", help="Presets; all by default.")
    ] = None,
) -> None:
    """Measure built-in models and write the file that `partita models` reads."""
    console = Console(stderr=True)
    known = models.sizes.load() if FILE.exists() else {}
    for number, preset in enumerate(presets or models.names(), 1):
        with console.status(f"{number}: {preset}"):
            known[preset] = measured(preset)
    ordered = {preset: known[preset] for preset in models.names() if preset in known}
    Path(FILE).write_text(written(ordered), "utf-8")


def main() -> None:
    """Entry point."""
    run(app)


if __name__ == "__main__":
    main()
