"""A plan run on the GPUs at hand."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from partita.verify.backends import gpu

ROOT = Path(__file__).parents[1]


def has_gpus():
    """Whether JAX finds GPUs; asked in another process, since this one has host devices."""
    if shutil.which("nvidia-smi") is None or not gpu.is_installed():
        return False
    asked = run("-c", "import jax; jax.devices('cuda')")
    return asked.returncode == 0


def run(*arguments):
    env = {**os.environ, "JAX_PLATFORMS": "cuda", "XLA_FLAGS": ""}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, timeout=600
    )


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpus(), reason="there is no GPU that JAX can use")
def test_the_demo_runs_on_gpus_as_it_does_whole():
    done = run("-m", "tools.demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "predicted and compiled are equal in kind, count, bytes and groups" in done.stdout
