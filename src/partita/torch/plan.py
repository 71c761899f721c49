"""The plan of a module of torch: placements by name, and all that a plan has."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle
from torch.distributed.tensor.placement_types import Placement

from partita.cost import Estimate
from partita.escape import printed
from partita.plan import Plan
from partita.spmd import Collective
from partita.tactics import Tactic
from partita.torch import activations
from partita.torch.boundaries import Boundaries, boundaries, only
from partita.torch.capture import Captured
from partita.torch.communication import Comparison, compare, rules
from partita.torch.distribution import Distribution, Local, ModulePlacements
from partita.torch.local import moved, of_loss
from partita.torch.parallelize import distribute, parallelize
from partita.torch.placements import Placements, placements_of, splits
from partita.torch.repeats import Run, blocks, layer_of, runs
from partita.torch.step import Step
from partita.torch.styles import styles
from partita.torch.target import refusals
from partita.torch.tools import Tools, tools
from partita.torch.uses import Uses


@dataclasses.dataclass(frozen=True, repr=False)
class TorchPlan:
    """Plan to partition a module of torch over a mesh. Made by `partita.torch.plan`.

    `print(plan)` shows a report. What a `partita.Plan` has is at `plan`; the most used is here.
    """

    plan: Plan
    """The plan of the program that was captured, in the names of torch."""
    step: Step
    """The function that was planned, with its arguments in the names of torch."""
    captured: Captured
    """The module, as it was captured."""

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of the mesh, in the order of the placements."""
        return self.plan.mesh.names

    @cached_property
    def _by_name(self) -> dict[str, Placements]:
        """The placements of arguments and results, by name."""
        program, spmd = self.plan.program, self.plan.spmd
        rows = [
            *zip(program.argument_names, spmd.argument_layouts, strict=True),
            *zip(program.result_names, spmd.result_layouts, strict=True),
        ]
        return {name: placements_of(layout, self.plan.mesh.sizes) for name, layout in rows}

    @cached_property
    def placements(self) -> Mapping[str, tuple[Placement, ...]]:
        """The placements of every parameter and buffer by its name in the module.

        One for each axis of the mesh. Tied parameters have theirs under each of their names.
        """
        tensors = (*self.captured.parameters.values(), *self.captured.buffers.values())
        found = {t.name: self._by_name[t.name] for t in tensors}
        tied = {
            name: found[first] for name, first in self.captured.aliases.items() if first in found
        }
        return found | tied

    @cached_property
    def optimizer_placements(self) -> Mapping[str, Mapping[str, tuple[Placement, ...]]]:
        """The placements of the optimizer's state, by parameter and by what torch calls it."""
        found: dict[str, dict[str, Placements]] = {}
        for tensor in self.captured.parameters.values():
            for name, placements in self._by_name.items():
                key = name.removeprefix("optimizer.").removesuffix(f".{tensor.name}")
                if name == f"optimizer.{key}.{tensor.name}":
                    found.setdefault(tensor.name, {})[key] = placements
        return found

    @cached_property
    def input_placements(self) -> Mapping[str, tuple[Placement, ...]]:
        """The placements of the inputs and targets, by the names of `forward`'s arguments."""
        return {t.name: self._by_name[t.name] for t in self.captured.inputs.values()}

    @cached_property
    def output_placements(self) -> Mapping[str, tuple[Placement, ...]]:
        """The placements of what the module returns; of the loss, where a step is planned."""
        names = self.plan.program.result_names
        wanted = [n for n in names if n == "loss" or n in self.captured.outputs]
        return {name: self._by_name[name] for name in wanted}

    @cached_property
    def module_placements(self) -> Mapping[str, ModulePlacements]:
        """The placements of activations at the boundaries of modules, by the module's path."""
        found, values, uses = self.boundaries, self._values, self._uses
        scopes = activations.scopes(self._runs)

        def scope(path: str) -> str:
            layer = layer_of(path)
            return scopes.get(layer, layer) + path.removeprefix(layer)

        def placed(nodes: Sequence[torch.fx.Node], of: Callable[[int], Placements]) -> Any:
            return tuple(of(values[node]) for node in nodes if node in values)

        made: dict[str, ModulePlacements] = {}
        for path in self.captured.paths:
            if path in found.inputs or path in found.outputs:
                inputs, outputs = found.inputs.get(path, ()), found.outputs.get(path, ())
                read = functools.partial(uses.read, scope=scope(path))
                made[path] = ModulePlacements(
                    placed(inputs, read), placed(outputs, uses.kept), placed(inputs, uses.kept)
                )
        return made

    @cached_property
    def used_placements(self) -> Mapping[str, tuple[Placement, ...]]:
        """The placements in which parameters are used; what is stored otherwise is gathered."""
        program = self.plan.program
        values = dict(zip(program.argument_names, program.arguments, strict=True))
        named = {t.name: self._uses.read(values[t.name]) for t in self.captured.parameters.values()}
        return named | {
            name: named[first] for name, first in self.captured.aliases.items() if first in named
        }

    @cached_property
    def boundaries(self) -> Boundaries:
        """The activations at the boundaries of modules, in the graph that was captured."""
        return boundaries(self.captured)

    @cached_property
    def _runs(self) -> list[Run]:
        return runs(self.captured.nodes)

    @cached_property
    def _uses(self) -> Uses:
        return Uses(self.plan)

    @cached_property
    def _values(self) -> Mapping[torch.fx.Node, int]:
        return activations.boundary_values(self.plan, self._runs, self.boundaries, self.captured)

    @cached_property
    def distribution(self) -> Distribution:
        """Data of the plan that `parallelize` takes: plain, and picklable."""
        found, shared = self.boundaries, self._shared
        return Distribution(
            self.axes,
            self.plan.mesh.sizes,
            self.placements,
            self.used_placements,
            self.input_placements,
            self.module_placements,
            {path: shared[node] for path, node in only(found.outputs) if node in shared},
            frozenset(path for path, node in only(found.inputs) if node in shared),
            self.refusals,
            self._local,
        )

    @cached_property
    def _shared(self) -> Mapping[torch.fx.Node, Placements]:
        """The only outputs of modules that all read alike and not as they are kept: how."""
        found = {}
        for nodes in self.boundaries.outputs.values():
            if len(nodes) == 1 and nodes[0] in self._values:
                value = self._values[nodes[0]]
                read = self._uses.shared(value)
                if read is not None and read != self._uses.kept(value):
                    found[nodes[0]] = read
        return found

    @cached_property
    def _local(self) -> Local:
        """Data that decides whether torch's `fully_shard` can do what was planned."""
        captured = self.captured
        return Local(
            moved(self.plan),
            self._returned(),
            tuple(blocks(captured)),
            captured.aliases,
            tuple(captured.mutated),
            of_loss(self.plan, self._class_axes()),
            bool(self.plan.spmd.lowering.regathered),
        )

    def _returned(self) -> tuple[Placements, ...] | None:
        nodes, values = self.boundaries.returned, self._values
        if not nodes:
            found = tuple(self.output_placements.values())
            return None if "loss" in self.output_placements else found
        if any(node not in values for node in nodes):
            return None
        return tuple(self._uses.kept(values[node]) for node in nodes)

    def _class_axes(self) -> list[str]:
        """The axes that split what the loss reads along its last dimension, that of classes."""
        values, last = self.plan.program.values, set[int]()
        for node in self.boundaries.returned:
            if node in self._values:
                value = self._values[node]
                split = self._uses.kept(value)
                end = len(values[value].type.shape) - 1
                last |= {n for n, p in enumerate(split) if splits(p) and p.dim == end}
        return [self.axes[n] for n in sorted(last)]

    def tools(self, module: torch.nn.Module) -> Tools:
        """Returns torch's own tools that `parallelize` uses, by path; prints as a table.

        `fully_shard`, and the styles of `parallelize_module`, are used where they give exactly the
        placements of the plan. Everything else is left to DTensors, and it says why.

        Args:
          module: the one that was planned.
        """
        return tools(self.distribution, module)

    def parallelize(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
        """Makes the parameters of a module DTensors, placed and used as planned, in place.

        By `fully_shard` and `parallelize_module` of torch, where these do what was planned; see
        `tools`.

        Called on every rank. What goes in is the whole input, on each rank, or DTensors; what comes
        out is DTensors. Optimizers of torch take its parameters as they are.

        Args:
          module: the one that was planned, with real parameters.
          device_mesh: of the axes of the plan, with their names.

        Raises:
          UnsupportedError: DTensor cannot do what was planned; see `refusals`.
          MeshError: it is another mesh than that of the plan.
        """
        return parallelize(self.distribution, module, device_mesh)

    def styles(self, module: torch.nn.Module, axis: str) -> dict[str, ParallelStyle]:
        """Returns styles for torch's `parallelize_module`, to do along an axis what was planned.

        Linear layers and embeddings become `ColwiseParallel` and `RowwiseParallel`, norms
        `SequenceParallel`. Code between the modules then sees local tensors, so it must not
        hard-code numbers of heads. Parameters that are stored in shards along another axis are left
        to `fully_shard`.

        Args:
          module: the one that was planned.
          axis: of the mesh, one along which widths or the sequence are split.

        Raises:
          UnsupportedError: a module is split along the axis in a way that has no style.
          AxisError: the mesh has no such axis.
        """
        return styles(self.distribution, module, self.plan.mesh.axis(axis))

    def distribute(
        self, tensors: Mapping[str, torch.Tensor], device_mesh: DeviceMesh
    ) -> dict[str, torch.Tensor]:
        """Inputs and targets by name, which all ranks have, as DTensors placed as planned."""
        return distribute(self.distribution, tensors, device_mesh)

    @property
    def estimate(self) -> Estimate:
        """Predicted time and memory of a step."""
        return self.plan.estimate

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """Every collective of a step, in program order."""
        return self.plan.collectives

    @property
    def history(self) -> Any:
        """Reports of the tactics, one each."""
        return self.plan.history

    def explain(self, what: str | int | Collective, alternatives: int = 6) -> Any:
        """Why values are split as they are, as `Plan.explain` says it."""
        return self.plan.explain(what, alternatives)

    def then(self, *tactics: Tactic) -> TorchPlan:
        """The plan with further tactics applied; this one stays as it is."""
        return dataclasses.replace(self, plan=self.plan.then(*tactics))

    def save(self, path: str | Path) -> None:
        """Writes the plan to a JSON file."""
        self.plan.save(path)

    def compare(self, issued: Mapping[Any, int]) -> Comparison:
        """Compares the plan's collectives with those that torch has issued in a step.

        Args:
          issued: what `CommDebugMode.get_comm_counts()` returns.
        """
        return compare(self.collectives, issued, rules(self.collectives, self.distribution))

    @cached_property
    def refusals(self) -> tuple[str, ...]:
        """Parts of this plan that DTensor cannot do, each with the reason; empty if none."""
        return refusals(self.collectives)

    @printed
    def __str__(self) -> str:
        return str(self.plan)

    @printed
    def __repr__(self) -> str:
        return f"<TorchPlan of {self.plan.done}>"
