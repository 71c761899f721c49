"""`python -m tools.mutants`: faults planted in the sources, and which test finds each first.

Each mutant is planted, by itself, in a copy of the package, and the tests of `make quick` run on
that until one fails. The checkout stays as it is. Mutants are data: `mutants.toml`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import typer
from rich.console import Console

from tools.mutants.planted import Mutant, MutantError, mutants
from tools.mutants.run import ROOT, Outcome, tried

QUICK = ROOT / "tests" / "quick.txt"
"""The tests of `make quick`."""


def markdown(outcomes: Sequence[Outcome]) -> str:
    """A table, a mutant in each row."""
    rows = [["mutant", "breaks", "found first by", "seconds"], ["---", "---", "---", "---:"]]
    for each in outcomes:
        mutant = each.mutant
        assert mutant is not None
        place = f"{mutant.file}:{mutant.line} {mutant.function}"
        rows.append([place, mutant.breaks, each.test or "**survived**", f"{each.seconds:.0f}"])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def summary(outcomes: Sequence[Outcome]) -> str:
    """How many were found."""
    return f"{sum(each.found for each in outcomes)} of {len(outcomes)} found"


def run(
    chosen: Sequence[Mutant], tests: Sequence[str], jobs: int, console: Console
) -> Iterator[Outcome]:
    """Tries mutants, after the package as it is.

    Raises:
      MutantError: a test fails without a mutant, or a mutant cannot be tried.
    """
    for mutant in chosen:
        _ = mutant.changed  # fails before anything has run
    plain = tried(None, tests)
    if plain.found:
        raise MutantError(f"{plain.test} fails without any mutant")
    console.print(f"the package as it is passes in {plain.seconds:.0f} s")
    with ThreadPoolExecutor(jobs) as pool:
        for outcome in pool.map(lambda mutant: tried(mutant, tests), chosen):
            assert outcome.mutant is not None
            what = outcome.test if outcome.found else "survived"
            console.print(f"{outcome.mutant.file}: {what}", soft_wrap=True, highlight=False)
            yield outcome


def main(
    only: Annotated[
        list[str] | None, typer.Argument(help="Parts of names of files; all by default.")
    ] = None,
    tests: Annotated[str, typer.Option(help="The tests; those of make quick by default.")] = "",
    jobs: Annotated[int, typer.Option(help="How many mutants are tested at once.")] = 1,
) -> None:
    """Plant faults in copies of the sources, and print which test finds each first."""
    chosen = [each for each in mutants() if not only or any(part in each.file for part in only)]
    selected = tests.split() or [f"@{QUICK.relative_to(ROOT)}"]
    try:
        outcomes = list(run(chosen, selected, jobs, Console(stderr=True)))
    except MutantError as error:
        sys.exit(f"error: {error}")
    print(markdown(outcomes))
    print(f"\n{summary(outcomes)}")


if __name__ == "__main__":
    typer.run(main)
