"""What is predicted to be stored on GPUs is what XLA's GPU compiler stores."""

from __future__ import annotations

import pytest

import gpu_kernels
from partita.analysis import Between, analyse
from partita.cost import CostModel, load
from partita.cost.kernels.fusion import analyse_fusion
from partita.cost.kernels.timing import Timing


@pytest.fixture
def timing(program):
    """`timing(fn, *types, hardware=)`, of a traced function."""

    def timing(fn, *types, hardware="h100"):
        return Timing(analyse(program(fn, *types)), load(hardware))

    return timing


def lifetime(timing, kind, elements):
    """The first and the last position of the only value that an operation of this kind makes with
    so many elements."""
    values, operations = timing.program.values, timing.program.operations
    ((start, end),) = (
        (start, end)
        for v, start, end in timing.lifetimes.tolist()
        if operations[values[v].producer].short == kind and values[v].type.elements == elements
    )
    return start, end


@pytest.mark.parametrize("experiment", gpu_kernels.EXPERIMENTS, ids=str)
def test_stored_arrays(program, experiment):
    made = program(experiment.fn, *experiment.types)
    fusion = analyse_fusion(made, analyse(made).uses, load(experiment.devices[0]).kernels)
    stored = [v.type for v in made.values if fusion.stored[v.index] and v.producer is not None]
    found = gpu_kernels.large([(each.dtype, each.elements) for each in stored], experiment)
    assert found == gpu_kernels.expected(experiment)


@pytest.mark.parametrize("device", gpu_kernels.COSTLY)
@pytest.mark.parametrize("operation", gpu_kernels.OPERATIONS)
def test_what_takes_long_is_not_computed_twice(program, operation, device):
    made = program(gpu_kernels.reduced_twice(operation), "f32[4096,4096]")
    kernels = analyse_fusion(made, analyse(made).uses, load(device).kernels)
    stored = [v for v in made.values if kernels.stored[v.index] and v.producer is not None]
    found = any(v.type.elements == 4096**2 for v in stored)
    assert found == (operation in gpu_kernels.COSTLY[device])


@pytest.mark.parametrize(("device", "row", "stored"), gpu_kernels.ROWS_OF_SOFTMAX)
def test_softmax_of_a_row_that_is_mostly_padding(program, device, row, stored):
    made = program(gpu_kernels.attention, *[f"bf16[4,{row},128]"] * 3)
    kernels = analyse_fusion(made, analyse(made).uses, load(device).kernels)
    types = [v.type for v in made.values if kernels.stored[v.index]]
    assert any(t.dtype == "f32" and t.elements == 4 * row * row for t in types) == stored


def test_a_product_that_only_a_scatter_changes_is_made_just_before_it(timing):
    """What it is made of is kept until then, if no other product of that is reduced meanwhile."""
    made = timing(gpu_kernels.rows_added, *gpu_kernels.ROWS_ADDED)
    loop = next(n for n, region in enumerate(made.program.regions) if region.repeats)
    ((value, start, end, summed),) = made.waited_for
    assert made.program.values[value].type.shape == (4096, 2**15) and summed == (1,)
    first, last = made.order.during(loop)
    assert start < first and end >= last


def test_nothing_waits_for_a_scatter_while_another_product_is_reduced(bench):
    b = bench(gpu_kernels.rows_added, *gpu_kernels.ROWS_ADDED)
    model = CostModel(b.graph, b.analysis, b.mesh, load("h100"))
    ((value, *span, (summed,)),) = model.timing.waited_for
    index = b.graph.value_class[value]

    def waits(tiling):
        copies = model.memory.copies(index, b.lowerer.lower(tiling).plans[index], Between.NONE)
        return span in [[*each.start.tolist(), *each.end.tolist()] for each in copies]

    color = b.graph.values[index].colors[summed]
    assert waits(b.untiled)
    assert not waits(b.propagator.tile_color(b.untiled, color, 0, {}).tiling)


def test_zeros_are_written_first_of_all(timing):
    made = timing(gpu_kernels.scattered, *gpu_kernels.SCATTERED)
    assert lifetime(made, "scatter", 2048 * 2**15)[0] == 0


def test_a_loop_converts_the_layers_of_a_stack_one_by_one(timing):
    assert not timing(gpu_kernels.narrowed, *gpu_kernels.NARROWED).narrowed
    ((_, _, _, dtype),) = timing(
        gpu_kernels.narrowed, *gpu_kernels.NARROWED, hardware="tpu_v5e"
    ).narrowed
    assert dtype == "bf16"


def test_what_lies_otherwise_is_laid_anew_in_the_type_it_is_read_in(timing):
    made = timing(gpu_kernels.gradients(gpu_kernels.grouped_attention), *gpu_kernels.GROUPED)
    stored = [v.type for v in made.program.values if made.fusion.stored[v.index]]
    found = [each.dtype for each in stored if each.elements == 4 * 8 * 1024 * 1024]
    assert found.count("f32") == 1


@pytest.mark.parametrize(("hardware", "wider"), [("h100", []), ("a100_80gb", ["bf16"])])
def test_without_arithmetic_in_bf16_what_is_stored_for_it_takes_twice_as_much(
    timing, hardware, wider
):
    made = timing(gpu_kernels.gradients(gpu_kernels.gelu), *gpu_kernels.GELU, hardware=hardware)
    large = [
        dtype
        for v, _, _, dtype in made.widened
        if made.program.values[v].type.elements == 4096 * 8192
    ]
    assert large == wider


STACK, LAYER = 4 * 512 * 1024 * 4, 1024 * 1024 * 2
"""Bytes of a device's shard of all weights, and of a layer of them as it is multiplied."""


def copies(plan):
    """Of all that is there besides what is kept: bytes, first and last position."""
    analysis = plan.done.stage.context.analysis
    lowering = plan.done.lowering
    memory = CostModel(lowering.graph, analysis, plan.mesh, plan.done.hardware).memory
    return [
        (copy.bytes, start, end)
        for index, each in enumerate(lowering.plans)
        for copy in memory.copies(index, each, Between.NONE)
        for start, end in zip(copy.start.tolist(), copy.end.tolist(), strict=True)
    ]


@pytest.mark.parametrize(("dim", "laid"), [(1, 0), (2, 1)])
def test_a_stack_is_laid_anew_for_loops_that_gather_along_an_inner_dimension(dim, laid):
    """For the loop of the forward pass: that of the backward pass reads what the first has kept."""
    spans = [span for bytes_, *span in copies(gpu_kernels.layered(dim)) if bytes_ == STACK]
    assert len(spans) == laid and all(end - start > 2 for start, end in spans)


def test_a_loop_reduces_the_gradient_of_a_layer_one_iteration_late():
    plan = gpu_kernels.layered(1)
    last = [end - start for bytes_, start, end in copies(plan) if bytes_ == LAYER]
    # What is gathered is there for one product, the gradient all through the loop.
    assert max(last) > 2 and len(last) == 3
