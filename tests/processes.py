"""Several processes at once, as on several hosts: started together, and ended if one fails."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

SECONDS = 240
"""How long processes may take before they are ended; a few seconds are usual."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def environment(devices: int, number: int = 0) -> dict[str, str]:
    """That of a process with so many host devices; what Python hashes to must not matter."""
    return os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} "
        "--xla_backend_optimization_level=0",
        "JAX_PLATFORMS": "cpu",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        "PYTHONHASHSEED": str(number),
    }


def run_together(
    commands: Sequence[Sequence[object]], devices: int, folder: Path, seconds: float = SECONDS
) -> tuple[list[int], list[str]]:
    """Runs processes until all have ended or it takes too long: exit codes, and what they wrote.

    Each is told how many there are, its number, and where the first one listens.
    """
    address, processes, logs = f"127.0.0.1:{free_port()}", [], []
    try:
        for number, command in enumerate(commands):
            logs.append(folder / f"{number}.log")
            words = [*command, "--coordinator", address, "--processes", len(commands)]
            with logs[-1].open("w") as output:
                processes.append(
                    subprocess.Popen(
                        [str(word) for word in (*words, "--process", number)],
                        env=environment(devices, number),
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and None in [each.poll() for each in processes]:
            time.sleep(0.1)
    finally:
        for process in processes:
            process.kill()
        codes = [process.wait() for process in processes]
    return codes, [log.read_text() for log in logs]


def all_succeed(codes: Sequence[int], logs: Sequence[str]) -> None:
    """Fails with what was written if one has not ended well."""
    text = "\n".join(
        f"--- process {number}, exit code {code}\n{log}"
        for number, (code, log) in enumerate(zip(codes, logs, strict=True))
    )
    assert set(codes) == {0}, text
