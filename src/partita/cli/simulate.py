"""`partita simulate`: what given shardings cost."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer
from jax.sharding import PartitionSpec

import partita as pt
from partita import models
from partita.cli.options import (
    HARDWARE,
    HtmlOption,
    JsonOption,
    MemoryOption,
    Model,
    TopologyOption,
)
from partita.cli.output import show, show_json, width
from partita.report.collect import summary
from partita.report.plan import view
from partita.verify.backends import backend_for


def simulate(
    model: Model,
    mesh: Annotated[str, typer.Option(help="Axes and sizes, for example data=4,model=2.")],
    hardware: Annotated[str, HARDWARE],
    given_in: Annotated[
        list[str] | None,
        typer.Option(
            "--in",
            help="Sharding of arguments, PATTERN=ENTRY,ENTRY,...: an entry for each dimension is "
            "an axis, several joined by +, or - for unsharded; as in 'batch*=data,-'. Repeatable; "
            "of several that match, the last one counts.",
        ),
    ] = None,
    given_out: Annotated[
        list[str] | None, typer.Option("--out", help="The same for results.")
    ] = None,
    memory: MemoryOption = None,
    compile_: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="Have XLA compile the step with these shardings, too: what comes out is priced, "
            "and where the quick answer differs is said.",
        ),
    ] = False,
    topology: TopologyOption = None,
    save: Annotated[
        Path | None, typer.Option(help="Write the plan to this file, as `partita plan --save`.")
    ] = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what given shardings of a model's step cost as XLA executes them, without a search."""
    compiles = compile_ or topology is not None
    if compiles:
        backend_for(topology).prepare(pt.Mesh.of(mesh).devices)
    loaded = models.load(model)
    made = pt.simulate(
        loaded.fn,
        *loaded.args,
        mesh=mesh,
        hardware=hardware,
        in_shardings=dict(map(_spec, given_in or [])),
        out_shardings=dict(map(_spec, given_out or [])),
        memory=memory,
        donate_argnums=loaded.donate_argnums,
        compile=topology or compiles,
    )
    if save is not None:
        made.save(save)
    if html is not None:
        made.report(html)
    if as_json:
        compiled = {} if made.compiled is None else {"compiled": made.compiled.as_dict()}
        show_json(summary(made.done) | compiled)
    else:
        show(view(made.done, width(), compiled=made.compiled))


def _spec(text: str) -> tuple[str, PartitionSpec]:
    """A pattern and a `PartitionSpec` from `PATTERN=data,-,replica+model`."""
    pattern, found, entries = text.rpartition("=")
    entries = entries.strip().removeprefix("(").removesuffix(")")
    parts = [part.strip() for part in entries.split(",") if part.strip()]
    if not pattern or not found or not all(re.fullmatch(r"-|\w+(\+\w+)*", p) for p in parts):
        raise pt.SpecError(
            f"cannot read {text!r}; expected PATTERN=ENTRY,ENTRY,..., as in 'batch*=data,-'"
        )
    axes = [None if part == "-" else tuple(part.split("+")) for part in parts]
    return pattern, PartitionSpec(*axes)
