"""`python -m tools.same FILE`: whether a change leaves plans as they were, to the last bit.

    python -m tools.same before.json            # before a change: records 240 plans
    python -m tools.same after.json before.json # after it: records them again, and compares

Every family of built-in models is planned by hand, by search and by both, over meshes of one, two
and three axes, for TPUs and GPUs, with much memory and with little. Of each plan are recorded the
layout of every operation and value, the lowered program, the estimate to the last digit, all that
its tactics report, and all this again of the plan that is saved and loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import typer
from rich.console import Console

import partita as pt
from partita import models
from partita.frontend.trace import Traced, trace
from partita.models.strategies import data_parallel, fsdp, schedule, tensor_parallel
from tools.coverage import PRESETS

BUDGET = 150
"""Plans that a search evaluates: its whole way is recorded, so a short one tells enough."""

Record = dict[str, str]
"""What a plan is, by what is recorded: texts, or digests of long ones."""


def plans(preset: str) -> Iterator[tuple[str, pt.Plan, models.Model]]:
    """The plans of a built-in model, each with what it is called."""
    model = models.build(preset)
    search = pt.AutomaticPartition
    by_hand = (data_parallel(), *tensor_parallel(preset))
    cases: list[tuple[str, str, str | None, tuple[Any, ...]]] = [
        (each.mesh, "tpu_v5e", memory, each.tactics)
        for name in ("data-parallel", "fsdp", "tensor-parallel", "automatic")
        for each in (schedule(preset, name, BUDGET),)
        for memory in (("100kB", None) if name == "automatic" else ("100kB",))
    ]
    cases += [
        ("data=2,model=4", "h100", None, (data_parallel(), search(axes="model", budget=BUDGET))),
        ("data=4,model=2", "h100", None, (search(axes="data", budget=BUDGET), *by_hand[1:])),
        ("data=2,model=2,x=2", "h100", None, (search(budget=BUDGET),)),
        ("data=4,model=2", "a100_80gb", "100kB", (search(budget=BUDGET, search="mcts", seed=1),)),
        ("data=2,model=2,x=2", "tpu_v5p", None, (*by_hand, fsdp(), search("x", budget=BUDGET))),
    ]
    for mesh, hardware, memory, tactics in cases:
        plan = pt.plan(
            model.fn,
            *model.args,
            mesh=mesh,
            hardware=hardware,
            memory=memory,
            tactics=tactics,
            donate_argnums=model.donate_argnums,
        )
        names = ", ".join(tactic.name for tactic in tactics)
        yield f"{preset} {mesh} {hardware} {memory or ''}: {names}", plan, model


def recorded(plan: pt.Plan, model: models.Model, folder: Path) -> Record:
    """What a plan is, and what it is again once it has been saved and loaded."""
    found = _recorded(plan)
    plan.save(folder / "plan.json")
    loaded = pt.load(folder / "plan.json", model.fn, *model.args)
    again = _recorded(loaded)
    return {**found, **{f"loaded: {name}": text for name, text in again.items()}}


def _recorded(plan: pt.Plan) -> Record:
    assigned = plan.assignment
    said = [
        (e.name, e.decisions, dict(e.tiled), list(map(str, e.actions)), list(map(str, e.refused)))
        for e in plan.history
    ]
    met = [(list(map(str, e.blocked)), e.conflicts, e.resolved, e.warnings) for e in plan.history]
    costs = [
        (dict(e.collectives), list(map(str, e.replicated_uses)), repr(e.before), repr(e.estimate))
        for e in plan.history
    ]
    return {
        "layouts": _digest((assigned.ops, assigned.values, sorted(assigned.pinned))),
        "history": _digest([(e.assignment.ops, e.assignment.values) for e in plan.history]),
        "program": _digest(str(plan.spmd)),
        "collectives": _digest(list(map(repr, plan.collectives))),
        "estimate": repr(plan.estimate),
        "said": _digest(said),
        "met": _digest(met),
        "costs": _digest(costs),
    }


def _digest(data: Any) -> str:
    return hashlib.sha256(repr(data).encode()).hexdigest()[:16]


def compared(before: dict[str, Record], after: dict[str, Record]) -> list[str]:
    """What differs, a line for each plan."""
    found = []
    for name in dict.fromkeys((*before, *after)):
        then, now = before.get(name, {}), after.get(name, {})
        fields = [
            field for field in dict.fromkeys((*then, *now)) if then.get(field) != now.get(field)
        ]
        if fields:
            found.append(f"{name}: {', '.join(fields)}")
    return found


def record(presets: Sequence[str], console: Console) -> dict[str, Record]:
    """The plans of some presets."""
    found: dict[str, Record] = {}
    with tempfile.TemporaryDirectory() as folder:
        for preset in presets:
            begun = time.monotonic()
            with mock.patch("partita.planning.prepare.trace", _once(trace)):
                for name, plan, model in plans(preset):
                    found[name] = recorded(plan, model, Path(folder))
            console.print(f"{preset}: {time.monotonic() - begun:.1f} s")
    return found


def _once(original: Callable[..., Traced]) -> Callable[..., Traced]:
    """Tracing that serves all plans of a model."""
    known: dict[Any, Traced] = {}

    def traced(fn: Any, *args: Any, **kwargs: Any) -> Traced:
        key = id(fn), repr(args), repr(kwargs)
        if key not in known:
            known[key] = original(fn, *args, **kwargs)
        return known[key]

    return traced


def main(
    file: Annotated[Path, typer.Argument(help="Where to write what is recorded.")],
    before: Annotated[Path | None, typer.Argument(help="What to compare it with.")] = None,
    only: Annotated[str, typer.Option(help="Presets, with commas between; all by default.")] = "",
) -> None:
    """Records plans, and says which differ from those recorded before."""
    console = Console(stderr=True)
    found = record(only.split(",") if only else PRESETS, console)
    file.write_text(json.dumps(found, indent=1))
    console.print(f"{len(found)} plans in {file}")
    if before is not None:
        known = json.loads(before.read_text())
        differ = compared({name: known[name] for name in known if not only or name in found}, found)
        print("\n".join(differ) or f"all {len(found)} plans are the same")
        sys.exit(bool(differ))


if __name__ == "__main__":
    typer.run(main)
