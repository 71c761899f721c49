"""A program with the layouts of its arguments and results fixed, as facts of the program."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from partita.frontend.specs import Axes
from partita.frontend.trace import Traced
from partita.mesh import Mesh
from partita.program import Program
from partita.program.ir import GivenSharding, Specs
from partita.stablehlo import constraints, shardings
from partita.stablehlo.rewritten import rewritten


def simulated(
    traced: Traced, arguments: Mapping[int, Axes], results: Mapping[int, Axes], mesh: Mesh
) -> Program:
    """The program of a trace, to be partitioned as XLA does from these facts and its own."""
    specs = Specs(dict(arguments), dict(results), traced.own_results)
    program = fixed(traced.program, arguments, results, mesh)
    return dataclasses.replace(program, specs=specs)


def fixed(
    program: Program, arguments: Mapping[int, Axes], results: Mapping[int, Axes], mesh: Mesh
) -> Program:
    """The same program with the axes of arguments and results, by number, as facts.

    They replace what these come with.
    """
    if results:
        texts = {n: shardings.of_plan(axes, [False] * len(axes)) for n, axes in results.items()}
        constrain = functools.partial(constraints.constrain_results, shardings=texts)
        program = rewritten(program, constrain)
    given = [
        GivenSharding(program.argument_names[n], program.arguments[n], axes, False, tuple(mesh))
        for n, axes in arguments.items()
    ] + [
        GivenSharding(program.result_names[n], program.results[n], axes, False, tuple(mesh))
        for n, axes in results.items()
    ]
    said = {fact.value for fact in given}
    kept = [fact for fact in program.given if fact.value not in said]
    return dataclasses.replace(program, given=(*kept, *given))
