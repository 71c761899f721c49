"""Two processes of four devices each, beside one of eight, and beside the step unpartitioned."""

import os
import pickle
import runpy
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np

HERE = Path(__file__).parent
EXAMPLE = HERE.parent / "examples" / "many_hosts.py"
SECONDS = 120
"""How long the processes may take before they are ended; a few seconds is usual."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_together(commands, environments, logs):
    """Runs processes until all have ended, one has failed, or it takes too long."""
    processes = []
    try:
        for command, environment, log in zip(commands, environments, logs, strict=True):
            with log.open("w") as output:
                processes.append(
                    subprocess.Popen(
                        command, env=environment, stdout=output, stderr=subprocess.STDOUT
                    )
                )
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            codes = [process.poll() for process in processes]
            if None not in codes or any(codes):
                break
            time.sleep(0.1)
    finally:
        for process in processes:
            process.kill()
        codes = [process.wait() for process in processes]
    text = "\n".join(
        f"--- {log.name}, exit code {code}\n{log.read_text()}"
        for log, code in zip(logs, codes, strict=True)
    )
    assert codes == [0] * len(codes), text


def run_example(folder):
    """What the two processes write."""
    results = [folder / f"{number}.pickle" for number in range(2)]
    address = f"127.0.0.1:{free_port()}"
    flags = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"
    run_together(
        [
            [
                *(sys.executable, "-W", "error", HERE / "many_hosts_worker.py", EXAMPLE, result),
                *("--coordinator", address, "--processes", "2", "--process", str(number)),
            ]
            for number, result in enumerate(results)
        ],
        [
            # What a process hashes to must not matter.
            os.environ
            | {
                "XLA_FLAGS": flags,
                "JAX_PLATFORMS": "cpu",
                "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
                "PYTHONHASHSEED": str(number),
            }
            for number in range(2)
        ],
        [folder / f"{number}.log" for number in range(2)],
    )
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
