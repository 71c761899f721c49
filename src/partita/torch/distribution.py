"""Data of a plan that distributing its module takes: plain, by name, and picklable."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from partita.torch.placements import Placements


@dataclasses.dataclass(frozen=True)
class ModulePlacements:
    """Placements of the activations that go into a module and come out of it.

    Floating-point tensors only, each once, in the order in which the module reads or makes them;
    inputs as the module reads them, outputs as they are kept.
    """

    inputs: tuple[Placements, ...]
    outputs: tuple[Placements, ...]
    arriving: tuple[Placements, ...] = ()
    """The inputs as they are kept before the module reads them."""

    def along(self, axes: tuple[int, ...]) -> ModulePlacements:
        """Returns the placements along some axes only."""
        return ModulePlacements(
            *(tuple(_along(p, axes) for p in group) for group in self._groups())
        )

    def _groups(self) -> tuple[tuple[Placements, ...], ...]:
        return self.inputs, self.outputs, self.arriving


@dataclasses.dataclass(frozen=True)
class Local:
    """Data that decides whether a module can run on local tensors, as `fully_shard` has it do."""

    moved: Mapping[str, str]
    """Axes along which the forward moves what depends on its inputs, with the first such
    collective."""
    returned: tuple[Placements, ...] | None
    """Placements of the outputs of the module; None if one of them has no dimensions."""
    blocks: tuple[str, ...]
    """Paths of modules that repeat, and whose parameters no other module reads."""
    tied: Mapping[str, str]
    """Further names of parameters that have several, each with the first."""
    changes: tuple[str, ...]
    """Buffers that the module changes."""
    over_classes: Mapping[str, int]
    """Number of collectives by kind that the loss takes because its input is split over classes.

    Classes are the last dimension of what the loss reads.
    """
    regathers: bool
    """True if parameters are gathered again for the backward."""


@dataclasses.dataclass(frozen=True)
class Distribution:
    """Data of a plan that distributing its module takes; everything by name."""

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    parameters: Mapping[str, Placements]
    """Placements in which parameters and buffers are stored."""
    used: Mapping[str, Placements]
    """Placements in which parameters are used."""
    inputs: Mapping[str, Placements]
    modules: Mapping[str, ModulePlacements]
    read: Mapping[str, Placements]
    """Placements in which all users read a module's only output, by path, if not as it is kept.

    Such an output is redistributed once for all of its users.
    """
    ready: frozenset[str]
    """Modules whose only input is redistributed so, for all, before they read it."""
    refusals: tuple[str, ...]
    local: Local

    def without(self, axis: int) -> Distribution:
        """The same along the other axes."""
        kept = tuple(n for n in range(len(self.axes)) if n != axis)
        parameters, used, inputs, read = (
            {name: _along(p, kept) for name, p in group.items()}
            for group in (self.parameters, self.used, self.inputs, self.read)
        )
        return dataclasses.replace(
            self,
            axes=tuple(self.axes[n] for n in kept),
            sizes=tuple(self.sizes[n] for n in kept),
            parameters=parameters,
            used=used,
            inputs=inputs,
            read=read,
            modules={path: each.along(kept) for path, each in self.modules.items()},
        )


def _along(placements: Placements, axes: tuple[int, ...]) -> Placements:
    return tuple(placements[axis] for axis in axes)
