"""The command `partita`: plans from the terminal."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.console import Console
from rich.markup import escape

# Planning needs no accelerator; do not take one away from whoever is using it.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from jax.sharding import PartitionSpec

import partita as pt
from partita import cost, models
from partita.cost.calibrate import Budget
from partita.cost.calibrate import calibrate as measure
from partita.explain import ALTERNATIVES, EVERY
from partita.frontend.files import format_of
from partita.report import hardware as hardware_report
from partita.report.json import summary
from partita.report.plan import view
from partita.report.progress import progress_bar
from partita.run.executable import Form
from partita.verify.backends import backend_for, topologies

app = typer.Typer(
    help="Decides how a machine-learning program is split over a mesh of accelerators.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

FORMS: dict[str, tuple[Form, ...]] = {
    "partitioned": ("partitioned",),
    "annotated": ("annotated",),
    "both": ("partitioned", "annotated"),
}

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


Model = Annotated[
    str,
    typer.Argument(
        help="A built-in model (gpt-tiny, llama3-8b, ...; a wrong name lists them), "
        "path/to/file.py:function, where function() returns (fn, args), or a StableHLO file "
        "(.mlir, .mlirbc, or a serialized jax.export.Exported)."
    ),
]
MeshOption = Annotated[
    str, typer.Option("--mesh", help="Axes and sizes, for example data=4,model=2.")
]
HardwareOption = Annotated[
    str, typer.Option("--hardware", help="A device type (see `partita hardware`) or a .toml file.")
]
ManualOption = Annotated[
    list[str] | None,
    typer.Option(
        "--manual",
        help="A manual tactic PATTERN:DIM@AXIS, for example 'batch*:0@data'. Repeatable; "
        "applied in order before the search.",
    ),
]
AxesOption = Annotated[
    str | None,
    typer.Option(
        "--axes",
        help="Axes for the search, comma-separated; 'none' for no search. All by default.",
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option("--memory", help="Memory per device that may be used, for example 12GiB."),
]
BudgetOption = Annotated[int, typer.Option("--budget", help="Plans that the search may price.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of the search.")]
LiftOption = Annotated[
    bool,
    typer.Option(
        "--lift-constants",
        help="Make arrays in the program arguments named constants[0], ..., so that they can "
        "be split.",
    ),
]
PartitionedOption = Annotated[
    Path | None,
    typer.Option(
        "--partitioned",
        help="Write the program that the plan runs, collectives and all: .mlir is text, "
        ".mlirbc bytecode, .bin a serialized jax.export.Exported.",
    ),
]
AnnotatedOption = Annotated[
    Path | None,
    typer.Option(
        "--annotated",
        help="Write the original program with shardings on its values, for a compiler that "
        "partitions by itself. Endings as above.",
    ),
]


@app.command()
def plan(
    model: Model,
    mesh: MeshOption,
    hardware: HardwareOption,
    manual: ManualOption = None,
    axes: AxesOption = None,
    memory: MemoryOption = None,
    budget: BudgetOption = 1500,
    seed: SeedOption = 0,
    lift_constants: LiftOption = False,
    partitioned: PartitionedOption = None,
    annotated: AnnotatedOption = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Write the plan to this JSON file, for `partita show` and partita.load."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Plan a model's step over a mesh, and print what was decided and what it costs."""
    files = _files(partitioned, annotated)
    tactics = _schedule(manual or [], axes, budget, seed)
    made = _planned(model, mesh, hardware, tactics, memory, lift_constants)
    if save is not None:
        made.save(save)
    _hand_out(made, files, as_json)


@app.command()
def show(
    plan: Annotated[Path, typer.Argument(help="A file that `partita plan --save` wrote.")],
    model: Model,
    hardware: Annotated[
        str | None,
        typer.Option(
            help="Cost on another device type, or a .toml file; that of the plan if none."
        ),
    ] = None,
    memory: MemoryOption = None,
    partitioned: PartitionedOption = None,
    annotated: AnnotatedOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print a saved plan, after checking that it is for this model. Nothing is searched."""
    files = _files(partitioned, annotated)
    loaded = models.load(model)
    made = pt.load(plan, loaded.fn, *loaded.args, hardware=hardware, memory=memory)
    _hand_out(made, files, as_json)


@app.command()
def explain(
    model: Model,
    mesh: MeshOption,
    hardware: HardwareOption,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME...",
            help="Names or patterns of arguments, results and tagged values; %12, a value by its "
            "number; file.py:12, what is made at a line; or the number of a collective.",
        ),
    ] = None,
    collectives: Annotated[
        bool, typer.Option("--collectives", help="Explain all collectives, longest first.")
    ] = False,
    alternatives: Annotated[
        int, typer.Option(help="Changes that may be tried and priced, for each name.")
    ] = ALTERNATIVES,
    manual: ManualOption = None,
    axes: AxesOption = None,
    memory: MemoryOption = None,
    budget: BudgetOption = 1500,
    seed: SeedOption = 0,
    lift_constants: LiftOption = False,
    as_json: JsonOption = False,
) -> None:
    """Explain why values are split as they are, and what collectives are for."""
    wanted = [*(names or []), *([EVERY] if collectives else [])]
    if not wanted:
        raise pt.UnknownNameError(
            "say what to explain: names or patterns such as 'batch*', or --collectives"
        )
    tactics = _schedule(manual or [], axes, budget, seed)
    made = _planned(model, mesh, hardware, tactics, memory, lift_constants)
    found = [made.explain(what, alternatives) for what in wanted]
    if as_json:
        print(json.dumps([entry for each in found for entry in each.as_dicts()], indent=2))
    else:
        print("\n\n".join(map(str, found)))


@app.command()
def verify(
    model: Model,
    mesh: MeshOption,
    hardware: HardwareOption,
    topology: Annotated[
        str | None,
        typer.Option(
            help="Devices to compile for, which need not be there: "
            f"{escape(topologies())}. Host devices by default."
        ),
    ] = None,
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
        typer.Option("--no-combining", help="Keep a TPU compiler from combining sums."),
    ] = False,
    manual: ManualOption = None,
    axes: AxesOption = None,
    memory: MemoryOption = None,
    budget: BudgetOption = 1500,
    seed: SeedOption = 0,
    lift_constants: LiftOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compile a plan with a real XLA, and print what was predicted beside what was compiled.

    The exit status is 1 if the prediction does not hold: other collectives on the host, or a
    compiler that runs out of memory where the plan was predicted to fit.
    """
    if form not in FORMS:
        raise pt.FileError(f"there is no form {form!r}; expected {', '.join(FORMS)}")
    backend_for(topology).prepare(pt.Mesh.of(mesh).devices)
    tactics = _schedule(manual or [], axes, budget, seed)
    made = _planned(model, mesh, hardware, tactics, memory, lift_constants)
    found = []
    for each in FORMS[form]:
        with Console(stderr=True).status(f"compiling the {each} form"):
            found.append(
                made.verify(
                    topology, each, windowed_einsum=windowed_einsum, combine=not no_combining
                )
            )
    if as_json:
        print(json.dumps([each.as_dict() for each in found], indent=2))
    else:
        Console().print(*(each.view() for each in found), sep="\n\n")
    raise typer.Exit(0 if all(each.passed for each in found) else 1)


@app.command()
def simulate(
    model: Annotated[str, typer.Argument(help="As for `partita plan`.")],
    mesh: Annotated[str, typer.Option(help="Axes and sizes, for example data=4,model=2.")],
    hardware: Annotated[
        str, typer.Option(help="A device type (see `partita hardware`) or a .toml file.")
    ],
    given_in: Annotated[
        list[str] | None,
        typer.Option(
            "--in",
            help="Sharding of arguments, PATTERN=ENTRY,ENTRY,...: an entry for each dimension is "
            "an axis, several joined by +, or - for whole; as in 'batch*=data,-'. Repeatable; of "
            "several that match, the last one counts.",
        ),
    ] = None,
    given_out: Annotated[
        list[str] | None, typer.Option("--out", help="The same for results.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Memory per device that may be used, for example 12GiB.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print what given shardings of a model's step cost, without a search."""
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
    )
    if as_json:
        print(json.dumps(summary(made.done), indent=2))
    else:
        console = Console()
        console.print(view(made.done, console.width))


@app.command()
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
        print(hardware_report.as_json(known))
    elif device_type is None:
        Console().print(hardware_report.listing(known))
    else:
        print(hardware_report.shown(known[0]))


@app.command()
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
    jax.config.update("jax_platforms", platform)
    console = Console(stderr=True)
    found = measure(
        path, like=like, budget=Budget(seconds), progress=lambda text: console.print(text)
    )
    print(found)


def _planned(
    model: str,
    mesh: str,
    hardware: str,
    tactics: list[pt.Tactic],
    memory: str | None,
    lift_constants: bool,
) -> pt.Plan:
    loaded = models.load(model)
    with progress_bar(Console(stderr=True)) as progress:
        return pt.plan(
            loaded.fn,
            *loaded.args,
            mesh=mesh,
            hardware=hardware,
            tactics=tactics,
            memory=memory,
            donate_argnums=loaded.donate_argnums,
            lift_constants=lift_constants,
            progress=progress,
        )


def _files(partitioned: Path | None, annotated: Path | None) -> dict[Form, Path]:
    """The files to write a program to; complains before the work, not after it."""
    asked: dict[Form, Path | None] = {"partitioned": partitioned, "annotated": annotated}
    files = {form: path for form, path in asked.items() if path is not None}
    for path in files.values():
        format_of(path)
    return files


def _hand_out(plan: pt.Plan, files: dict[Form, Path], as_json: bool) -> None:
    """Writes and prints what was asked for."""
    for form, path in files.items():
        plan.export(path, form)
    if as_json:
        print(json.dumps(summary(plan.done), indent=2))
    else:
        console = Console()
        console.print(view(plan.done, console.width))


def _schedule(manual: list[str], axes: str | None, budget: int, seed: int) -> list[pt.Tactic]:
    tactics: list[pt.Tactic] = [_manual(text) for text in manual]
    if axes != "none":
        named = None if axes is None else axes.split(",")
        tactics.append(pt.AutomaticPartition(axes=named, budget=budget, seed=seed))
    return tactics


def _manual(text: str) -> pt.ManualPartition:
    match = re.fullmatch(r"(.+):(-?\d+|replicate)@(\w+)", text)
    if not match:
        raise pt.TacticError(
            f"cannot read --manual {text!r}; expected PATTERN:DIM@AXIS, as in 'batch*:0@data'"
        )
    dim: Any = match[2] if match[2] == "replicate" else int(match[2])
    return pt.ManualPartition({match[1]: dim}, axis=match[3])


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


def main() -> None:
    """Entry point."""
    run(app)


def run(app: typer.Typer) -> None:
    """Runs a command; prints errors of ours as one message and exits with 2."""
    try:
        app()
    except pt.PartitaError as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
