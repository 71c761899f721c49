"""Two processes of four devices each, beside one of eight, and beside the step unpartitioned."""

import pickle
import runpy
import sys
from pathlib import Path

import jax
import numpy as np

from processes import all_succeed, run_together

HERE = Path(__file__).parents[1]
EXAMPLE = HERE.parent / "examples" / "many_hosts.py"


def run_example(folder):
    """What the two processes write."""
    results = [folder / f"{number}.pickle" for number in range(2)]
    worker = (sys.executable, "-W", "error", HERE / "many_hosts_worker.py", EXAMPLE)
    codes, logs = run_together([[*worker, result] for result in results], 4, folder)
    all_succeed(codes, logs)
    return [pickle.loads(result.read_bytes()) for result in results]


def every_process_arrives_at_the_same_plan(outcomes, example):
    plan = example["make_plan"]()
    assert [outcome["plan"] for outcome in outcomes] == [str(plan)] * 2
    assert outcomes[0]["module"] == outcomes[1]["module"]
    # The processes have different halves of the axis `data`, so that they must exchange something.
    assert any("data" in collective.axes for collective in plan.collectives)


def three_steps_are_those_of_one_process_and_of_the_step_unpartitioned(outcomes, example):
    one, losses = example["train"](example["make_plan"]())
    step, expected = jax.jit(example["train_step"]), jax.jit(example["init"])(jax.random.key(0))
    for number, loss in enumerate(losses):
        expected, expected_loss = step(expected, example["read_rows"](number, slice(None)))
        np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    for outcome in outcomes:
        np.testing.assert_allclose(outcome["losses"], losses, rtol=1e-6)
    for number, whole in enumerate(jax.tree.leaves(one)):
        unpartitioned = np.asarray(jax.tree.leaves(expected)[number])
        seen = np.zeros(whole.shape, bool)
        for outcome in outcomes:
            for index, piece in outcome["state"][number]:
                np.testing.assert_allclose(piece, np.asarray(whole)[index], rtol=1e-4, atol=1e-5)
                np.testing.assert_allclose(piece, unpartitioned[index], rtol=1e-4, atol=1e-4)
                seen[index] = True
        assert seen.all()


def shard_places_whole_arrays_on_the_devices_of_all_processes(outcomes):
    rows = np.arange(64 * 32, dtype=np.float32).reshape(64, 32)
    for number, outcome in enumerate(outcomes):
        for array in outcome["batch"]:
            assert {index[0].start // 32 for index, _ in array} == {number}
            for index, piece in array:
                np.testing.assert_array_equal(piece, rows[index])


def a_mesh_without_part_for_a_process_is_an_error_in_all_of_them(outcomes):
    for outcome in outcomes:
        assert outcome["half"].startswith(
            "mesh data=4 takes the first 4 of 8 devices, and these belong to 1 of 2 processes"
        )


def test_two_processes(tmp_path):
    outcomes, example = run_example(tmp_path), runpy.run_path(str(EXAMPLE))
    every_process_arrives_at_the_same_plan(outcomes, example)
    three_steps_are_those_of_one_process_and_of_the_step_unpartitioned(outcomes, example)
    shard_places_whole_arrays_on_the_devices_of_all_processes(outcomes)
    a_mesh_without_part_for_a_process_is_an_error_in_all_of_them(outcomes)
