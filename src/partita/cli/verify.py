"""`partita verify`: a plan compiled with a real XLA, beside what was predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import partita as pt
from partita.cli.options import CompilerOption, HtmlOption, JsonOption, TopologyOption
from partita.cli.output import show, show_json
from partita.cli.planned import Planning
from partita.run.executable import Form
from partita.text import console
from partita.verify import Verification
from partita.verify.backends import backend_for
from partita.verify.compile import compiler_options
from partita.verify.profile import Profile

FORMS: dict[str, tuple[Form, ...]] = {
    "partitioned": ("partitioned",),
    "annotated": ("annotated",),
    "both": ("partitioned", "annotated"),
}


def verify(
    options: Planning,
    topology: TopologyOption = None,
    form: Annotated[
        str,
        typer.Option(
            help="partitioned, the program that the plan runs; annotated, the one that a compiler "
            "partitions by itself; or both."
        ),
    ] = "partitioned",
    windowed_einsum: Annotated[
        bool,
        typer.Option(
            "--windowed-einsum",
            help="Let a TPU compiler that partitions by itself cut gathers and products into "
            "loops.",
        ),
    ] = False,
    no_combining: Annotated[
        bool,
        typer.Option("--no-combining", help="Keep the compiler from combining collectives."),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print what the compiler logs, too.")
    ] = False,
    compiler_option: CompilerOption = None,
    numbers: Annotated[
        bool,
        typer.Option(
            "--numbers",
            help="Run the plan and the original on host devices instead, with random arguments of "
            "--seed, and compare their results.",
        ),
    ] = False,
    profile: Annotated[
        Path | None,
        typer.Option(
            help="A folder that jax.profiler.trace has written to while the plan ran: measured "
            "beside predicted, per operation."
        ),
    ] = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compile a plan with a real XLA, and print what was predicted beside what was compiled.

    The exit status is 1 if the prediction does not hold: other collectives on the host, or a
    compiler that runs out of memory where the plan was predicted to fit. With --numbers it is 1 if
    results differ by more than rounding can do.
    """
    if numbers and (topology not in (None, "host") or form != "partitioned" or profile or html):
        raise pt.OptionError(
            "--numbers runs the partitioned form on host devices and prints a report of its own; "
            "leave out --topology, --form, --profile and --html, or run partita verify twice"
        )
    if form not in FORMS:
        raise pt.FileError(f"there is no form {form!r}; expected {', '.join(FORMS)}")
    options.check_mesh()
    backend_for(topology).prepare(options.device_count)
    further = compiler_options(compiler_option or [])
    made = options.plan()
    if numbers:
        with console(stderr=True).status("running the plan and the original"):
            check = made.check_numbers(seed=options.seed)
        if as_json:
            show_json(check.as_dict())
        else:
            show(check.view())
        options.check_manual(made)
        raise typer.Exit(0 if check.ok else 1)
    found = []
    for each in FORMS[form]:
        with console(stderr=True).status(f"compiling the {each} form"):
            found.append(
                made.verify(
                    topology,
                    each,
                    windowed_einsum=windowed_einsum,
                    combine=not no_combining,
                    verbose=verbose,
                    compiler_options=further,
                )
            )
    if html is not None:
        made.report(html, found)
    measured = [] if profile is None else [each.profile(profile) for each in found]
    if as_json:
        show_json([_data(each, *measured[n : n + 1]) for n, each in enumerate(found)])
    else:
        show(*(each.view() for each in found), *(each.view() for each in measured))
    options.check_manual(made)
    raise typer.Exit(0 if all(each.passed for each in found) else 1)


def _data(found: Verification, measured: Profile | None = None) -> dict[str, Any]:
    """A verification as JSON, with a profile if there is one."""
    return found.as_dict() | ({} if measured is None else {"profile": measured.as_dict()})
