"""Versions of JAX: which are tested, and what is said of others."""

from __future__ import annotations

import re
import tomllib
import warnings
from pathlib import Path

import jax
import pytest

import partita as pt
from partita.stablehlo.versions import NEWEST, OLDEST, warn_if_untested

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("version", [(0, 10, 2), (0, 10, 3), (0, 11, 0), (0, 12, 7), NEWEST])
def test_tested_versions_pass_in_silence(version):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_untested(version)


@pytest.mark.parametrize("version", [(0, 10, 1), (0, 9, 9), (0, 13, 0), (1, 0, 0)])
def test_other_versions_are_a_warning_with_what_to_expect(version):
    said = "this is JAX " + ".".join(map(str, version))
    with pytest.warns(pt.PartitaWarning, match=rf"tested with JAX 0.10.2 to 0.12, .*{said}.*fail"):
        warn_if_untested(version)


def test_the_oldest_version_is_what_installation_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (jax_itself,) = [line for line in project["dependencies"] if re.match(r"jax\b", line)]
    assert jax_itself == f"jax>={'.'.join(map(str, OLDEST))}"


def test_this_is_a_tested_version():
    assert jax.__version_info__ >= OLDEST
    assert jax.__version_info__[:2] <= NEWEST
