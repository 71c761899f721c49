"""Tests of the front end for PyTorch; skipped where torch is not installed."""

import importlib.util

import pytest

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def _warnings_of_torch(recwarn):
    """What torch warns of itself is no fault of the test."""
