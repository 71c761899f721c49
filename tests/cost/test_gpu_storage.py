"""What is predicted to be stored on GPUs is what XLA's GPU compiler stores."""

from __future__ import annotations

import pytest

import gpu_kernels
from partita.analysis import analyse
from partita.cost import load
from partita.cost.fusion import analyse_fusion


@pytest.mark.parametrize("experiment", gpu_kernels.EXPERIMENTS, ids=str)
def test_stored_arrays(program, experiment):
    made = program(experiment.fn, *experiment.types)
    fusion = analyse_fusion(made, analyse(made).uses, load("h100").kernels)
    stored = [v.type for v in made.values if fusion.stored[v.index] and v.producer is not None]
    found = gpu_kernels.large([(each.dtype, each.elements) for each in stored], experiment)
    assert found == gpu_kernels.expected(experiment)
