"""The analysis in words: colors by the arguments they are seen in, conflicts by source line."""

from __future__ import annotations

import dataclasses

from partita.analysis.classes import Analysis
from partita.escape import printed
from partita.program.names import pattern, shared_pattern
from partita.program.rule import Rule


@dataclasses.dataclass(frozen=True)
class ColorInfo:
    """A group of colors that are alike."""

    group: int
    count: int
    """Number of colors in the group."""
    size: int
    """Number of indices along it (the largest, where reshapes see parts of it)."""
    dims: int
    """Number of value dimensions that carry one of its colors."""
    examples: tuple[str, ...]
    """Argument and result dimensions with this color, repeated structure written once."""

    @printed
    def __str__(self) -> str:
        times = f" x{self.count}" if self.count > 1 else ""
        shown = ", ".join(self.examples[:3]) or "only inside the program"
        more = f", ... ({len(self.examples)} in all)" if len(self.examples) > 3 else ""
        return f"size {self.size}{times}: {shown}{more}"


@dataclasses.dataclass(frozen=True)
class ConflictInfo:
    """A group of conflict sets that are alike."""

    group: int
    count: int
    """Number of conflict sets in the group."""
    color: int
    """The color group that conflicts with itself."""
    roles: tuple[str, ...]
    """The roles that compete, each by an operation dimension that has it."""

    @printed
    def __str__(self) -> str:
        times = f" x{self.count}" if self.count > 1 else ""
        return f"{len(self.roles)} roles{times}: " + " | ".join(
            f"{number}: {role}" for number, role in enumerate(self.roles)
        )


@dataclasses.dataclass(frozen=True, repr=False)
class Colors:
    """Color groups and groups of conflict sets that the analysis found. `print` shows them."""

    colors: tuple[ColorInfo, ...]
    conflicts: tuple[ConflictInfo, ...]

    def name(self, group: int) -> str:
        """Names a color group by its first example: `batch['tokens'] dim 0`."""
        info = self.colors[group]
        return info.examples[0] if info.examples else f"color {group} of size {info.size}"

    def conflict(self, group: int) -> str:
        """Describes a group of conflict sets: its color, and the roles that compete for an axis."""
        info = self.conflicts[group]
        roles = "; ".join(f"{number}: {role}" for number, role in enumerate(info.roles))
        return f"{self.name(info.color)} meets itself, the axis can go to {roles}"

    @printed
    def __repr__(self) -> str:
        return f"<Colors: {len(self.colors)} kinds of color, {len(self.conflicts)} of conflict>"

    @printed
    def __str__(self) -> str:
        lines = [f"{len(self.colors)} kinds of color"]
        lines += [f"  {color.group}: {color}" for color in self.colors]
        lines.append(f"{len(self.conflicts)} kinds of conflict")
        lines += [f"  color {c.color}, {c}" for c in self.conflicts]
        return "\n".join(lines)


def describe(analysis: Analysis) -> Colors:
    """Describes the colors and conflicts of a program in words."""
    groups = analysis.groups
    infos = _color_infos(analysis)
    conflicts = tuple(
        ConflictInfo(
            number,
            _count_sets(analysis, roles),
            groups.conflict_color[number],
            tuple(_role_name(analysis, role) for role in roles),
        )
        for number, roles in enumerate(groups.conflict_groups)
    )
    return Colors(infos, conflicts)


def _role_name(analysis: Analysis, role: int) -> str:
    """Names a role by an operation that has it: `dimension 3 of dot_general at model.py:94`."""
    names, groups = analysis.names, analysis.groups.role_group
    for op in analysis.program.operations:
        start, end = names.factor_base[op.index], names.factor_base[op.index + 1]
        for factor, held in enumerate(analysis.conflicts.role[start:end].tolist()):
            if held >= 0 and groups[held] == role:
                return f"{factor_place(op.rule, factor)} of {op.short} at {op.source}"
    return f"role {role}"


def factor_place(rule: Rule, factor: int) -> str:
    """Returns the place of a factor in an operation: in its result, or a summed operand."""
    for dim, made_of in enumerate(rule.results[0]):
        if factor in made_of:
            return f"dimension {dim}"
    for number, tensor in enumerate(rule.operands):
        for dim, made_of in enumerate(tensor):
            if factor in made_of:
                return f"dimension {dim} of operand {number}"
    return f"factor {factor}"


def _color_infos(analysis: Analysis) -> tuple[ColorInfo, ...]:
    program, names, groups = analysis.program, analysis.names, analysis.groups
    color_group = groups.color_group
    count = [0] * groups.colors
    for group in color_group:
        count[group] += 1
    size, dims = [0] * groups.colors, [0] * groups.colors
    for value in program.values:
        for dim, color in enumerate(names.dim_colors(value.index)):
            if color >= 0:
                group = color_group[color]
                size[group] = max(size[group], value.type.shape[dim])
                dims[group] += 1
    seen: list[dict[tuple[str, int], list[str]]] = [{} for _ in range(groups.colors)]
    labelled = [
        *zip(program.argument_names, program.arguments, strict=True),
        *zip(program.result_names, program.results, strict=True),
    ]
    # Short paths say most: parameters and batches before optimizer state.
    for name, v in sorted(labelled, key=lambda item: len(pattern(item[0]))):
        for dim, color in enumerate(names.dim_colors(v)):
            if color >= 0:
                seen[color_group[color]].setdefault((pattern(name), dim), []).append(name)
    examples = [
        tuple(f"{shared_pattern(named)} dim {dim}" for (_, dim), named in each.items())
        for each in seen
    ]
    return tuple(
        ColorInfo(group, count[group], size[group], dims[group], examples[group])
        for group in range(groups.colors)
    )


def _count_sets(analysis: Analysis, roles: tuple[int, ...]) -> int:
    role_group = analysis.groups.role_group
    return sum(1 for s in analysis.conflicts.sets if any(role_group[r] in roles for r in s))
