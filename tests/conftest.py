"""Test setup: eight CPU devices, chosen before anything imports jax."""

import os

DEVICES = "--xla_force_host_platform_device_count=8"

flags = os.environ.get("XLA_FLAGS", "").split()
os.environ["XLA_FLAGS"] = " ".join([*(f for f in flags if f != DEVICES), DEVICES])
os.environ["JAX_PLATFORMS"] = "cpu"
