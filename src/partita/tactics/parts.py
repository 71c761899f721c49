"""Parameters, optimizer state and examples: what the arguments of a program are, by their names.

JAX prints the path of an argument as `state['opt'][0].mu['layers'][1]['wq']`. Its parts are
`state`, `opt`, `0`, `mu`, `layers`, `1`, `wq`, and usual parts say what it is. Who calls things
otherwise says so with patterns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from partita.decisions import Request, Stage
from partita.errors import TacticError
from partita.program import Program
from partita.program.names import match, path
from partita.tactics.placement import Dims

Patterns = str | Sequence[str] | Mapping[str, Dims]
"""Names of arguments and results: a pattern, several, or each with its dimensions."""

BATCH = frozenset(
    """batch x y inputs targets tokens images labels examples source target prompt""".split()
)
"""Names of arguments that hold examples, and of the parts of an argument that does."""

PARAMETERS = frozenset({"params", "parameters"})
"""Parts of the paths of parameters."""

OPTIMIZER = frozenset(
    """opt opt_state optimizer optimizer_state mu nu trace momentum v_row v_col""".split()
)
"""Parts of the paths of optimizer state; `mu`, `nu`, `trace` and the last two are Optax's."""


@dataclasses.dataclass(frozen=True)
class TrainState:
    """Arguments and results that are parameters, and those that are optimizer state."""

    parameters: tuple[tuple[str, int], ...]
    optimizer: tuple[tuple[str, int], ...]


def train_state(
    program: Program,
    patterns: Patterns | None = None,
    optimizer: Patterns | None = None,
) -> TrainState:
    """Finds the parameters and the optimizer state of a program, each as (name, value).

    Args:
      program: whose arguments and results to look through.
      patterns: of the parameters. By default those with a part `params` or `parameters` in their
        path; if there are none, those that the optimizer state mirrors (the same shape, and the
        same path behind `mu` or what it is called). Where the program says what they are, that
        counts.
      optimizer: patterns of the optimizer state. By default what has a part such as `opt_state`,
        `mu` or `nu` in its path.

    Raises:
      UnknownNameError: a pattern matches nothing.
    """
    named, roles = _named(program), program.roles
    if roles is not None and patterns is None and optimizer is None:
        return TrainState(
            tuple((name, value) for name, value in named if value in roles.parameters),
            tuple((name, value) for name, value in named if value in roles.optimizer),
        )
    moments = (
        [(n, v) for n, v in named if not OPTIMIZER.isdisjoint(path(n))]
        if optimizer is None
        else matched(program, optimizer)
    )
    held = {value for _, value in moments}
    if patterns is not None:
        return TrainState(tuple(matched(program, patterns)), tuple(moments))
    rest = [(name, value) for name, value in named if value not in held]
    found = [(name, value) for name, value in rest if not PARAMETERS.isdisjoint(path(name))]
    if not found:
        mirrored = {(_shape(program, value), _behind(path(name))) for name, value in moments}
        found = [
            (name, value)
            for name, value in rest
            if any((_shape(program, value), end) in mirrored for end in _ends(path(name)))
        ]
    return TrainState(tuple(found), tuple(moments))


def as_patterns(patterns: Patterns) -> tuple[str, ...]:
    """The patterns by themselves."""
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def matched(program: Program, patterns: Patterns) -> list[tuple[str, int]]:
    """Returns the matches of patterns as (name, value), each value once."""
    found: dict[int, str] = {}
    for pattern in as_patterns(patterns):
        for name, value in match(program, pattern):
            found.setdefault(value, name)
    return [(name, value) for value, name in found.items()]


def batch_arguments(program: Program) -> list[tuple[str, int]]:
    """Finds the arguments that hold examples, each as (name, value), by their names.

    Those are arguments called as in `BATCH`, with all that is nested in them. If there are none,
    they are what is called so directly inside of an argument, as `data['inputs']`, with all else
    in that argument that has as many rows. Where the program says what holds examples, that counts.
    """
    named = [*zip(program.argument_names, program.arguments, strict=True)]
    if program.roles is not None:
        return [(name, value) for name, value in named if value in program.roles.examples]
    found = [(name, value) for name, value in named if path(name)[0] in BATCH]
    if found:
        return found
    state = train_state(program)
    held = {value for _, value in (*state.parameters, *state.optimizer)}
    free = [(name, value) for name, value in named if value not in held]
    rows = {
        (path(name)[0], _shape(program, value)[:1])
        for name, value in free
        if len(path(name)) == 2 and path(name)[1] in BATCH
    }
    return [
        (name, value) for name, value in free if (path(name)[0], _shape(program, value)[:1]) in rows
    ]


def examples(
    stage: Stage, tactic: str, patterns: Patterns | None, dim: int, option: str = "patterns"
) -> list[Request]:
    """A request for a dimension of all that holds examples and has that dimension.

    Args:
      stage: whose program to look through.
      tactic: that asks, for messages.
      patterns: of what holds examples; by default those that `batch_arguments` finds.
      dim: the dimension.
      option: of the tactic that takes these patterns, for messages.

    Raises:
      UnknownNameError: a pattern matches nothing.
      TacticError: nothing has that dimension; the message says how to name examples.
    """
    program = stage.context.analysis.program
    if patterns is None:
        found = batch_arguments(program)
        missing = f"is called {', '.join(sorted(BATCH))}"
    else:
        found = matched(program, patterns)
        missing = f"matches {', '.join(map(repr, as_patterns(patterns)))}"
    wide = [
        Request(name, value, (dim,))
        for name, value in found
        if len(program.values[value].type.shape) > dim
    ]
    if not wide:
        raise TacticError(
            f"{tactic}: no argument of {program.name} that has a dimension {dim} {missing}; say "
            f'what holds examples, as in {option}=["{_suggestion(program)}"] or '
            f'{{"{_suggestion(program)}": {dim}}}. {arguments(program)}'
        )
    return wide


def learned(program: Program) -> list[tuple[str, int]]:
    """The arguments that are parameters; if none are called so, all but optimizer state."""
    inputs = set(program.arguments)
    found = train_state(program)
    moments = {value for _, value in found.optimizer}
    parameters = [(name, value) for name, value in found.parameters if value in inputs]
    every = zip(program.argument_names, program.arguments, strict=True)
    return parameters or [(name, value) for name, value in every if value not in moments]


def arguments(program: Program, most: int = 8) -> str:
    """The names of the arguments, in a sentence."""
    names = program.argument_names
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"Arguments are {', '.join(names[:most])}{more}" if names else "It takes no arguments"


def _suggestion(program: Program) -> str:
    """A pattern of the last argument: states and parameters usually come first."""
    names = program.argument_names
    first = path(names[-1])[0] if names else "batch"
    return first if names and names[-1] == first else f"{first}*"


def _named(program: Program) -> list[tuple[str, int]]:
    """Arguments and results with their names; a value with two names has the first."""
    found: dict[int, str] = {}
    for name, value in (
        *zip(program.argument_names, program.arguments, strict=True),
        *zip(program.result_names, program.results, strict=True),
    ):
        found.setdefault(value, name)
    return [(name, value) for value, name in found.items()]


def _shape(program: Program, value: int) -> tuple[int, ...]:
    return program.values[value].type.shape


def _behind(parts: tuple[str, ...]) -> tuple[str, ...]:
    """The end of a path of optimizer state that is also that of the parameter."""
    last = max((n for n, part in enumerate(parts) if part in OPTIMIZER), default=len(parts))
    return parts[last + 1 :]


def _ends(parts: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The ends of a path, the longest first; not the empty one."""
    return [parts[n:] for n in range(len(parts))]
