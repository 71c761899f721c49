"""Named dimension analysis: names, colors, conflicts, groups and classes of a program."""

from partita.analysis.classes import Analysis, ClassGraph, OpClass, Use, ValueClass, discrete, fold
from partita.analysis.conflicts import analyse_conflicts
from partita.analysis.groups import analyse_groups
from partita.analysis.names import analyse_names
from partita.analysis.windows import Between, Window
from partita.program.ir import Program

__all__ = [
    "Analysis",
    "Between",
    "ClassGraph",
    "OpClass",
    "Use",
    "ValueClass",
    "Window",
    "analyse",
    "discrete",
    "fold",
]


def analyse(program: Program, regather_window: int | None = None) -> Analysis:
    """Analyses a program: which dimensions go together, where they conflict, what repeats.

    The result does not depend on a mesh.

    Args:
      program: to be analysed.
      regather_window: uses that are more than this many operations apart are far; by default,
        nothing is gathered again for any use.
    """
    names = analyse_names(program)
    conflicts = analyse_conflicts(names)
    groups = analyse_groups(names, conflicts)
    draft = Analysis(program, names, conflicts, groups, program.uses(), [], regather_window)
    numbers: dict[object, int] = {}
    base, (colors, roles) = names.factor_base, draft.groups_of(0, names.nodes)
    for op in program.operations:
        factors = slice(base[op.index], base[op.index + 1])
        where = (op.times, op.region > 0)
        key = (groups.signature[op.index], colors[factors], roles[factors], where)
        draft.labels.append(numbers.setdefault(key, len(numbers)))
    return draft
