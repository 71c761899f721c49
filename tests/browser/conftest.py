"""A browser without a window, and pages that it opens."""

from __future__ import annotations

import shutil

import pytest

import partita as pt
from partita import models
from partita.models.strategies import data_parallel, fsdp, tensor_parallel
from partita.report.compare import comparison, side_of_plan
from partita.report.page.comparison import comparison_page


@pytest.fixture(scope="session")
def browser():
    """Chromium, driven by selenium."""
    webdriver = pytest.importorskip("selenium.webdriver")
    found = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in found:
        pytest.skip("no chromium and chromedriver on this machine")
    options = webdriver.ChromeOptions()
    options.binary_location = found[0]
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(found[1]))
    yield driver
    driver.quit()


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="session")
def large(folder):
    """The page of a GPT with 24 layers: FSDP and tensor parallelism."""
    model = models.load("gpt-24l")
    tactics = [data_parallel(), *tensor_parallel("gpt-24l"), fsdp()]
    plan = pt.plan(
        *[model.fn, *model.args], mesh="data=4,model=8", hardware="tpu_v5e", tactics=tactics
    )
    plan.report(folder / "gpt-24l.html")
    return folder / "gpt-24l.html"


@pytest.fixture(scope="session")
def searched(folder):
    """The page of a tiny GPT that a search has split, with a request that is refused."""
    model = models.load("gpt-tiny")
    tactics = [
        pt.ManualPartition({"batch['tokens']": 1}, axis="data"),
        pt.ManualPartition({"*['w_in']": 0}, axis="odd"),
        pt.AutomaticPartition("data", budget=300),
    ]
    plan = pt.plan(*[model.fn, *model.args], mesh="data=2,odd=3", hardware="h100", tactics=tactics)
    plan.report(folder / "gpt-tiny.html")
    return folder / "gpt-tiny.html"


@pytest.fixture(scope="session")
def several(folder):
    """The page of three plans side by side."""
    model = models.load("mlp")
    sides = []
    for number, axis in enumerate(("data", "model", "none")):
        tactics = [pt.DataParallel(axis)] if axis != "none" else []
        plan = pt.plan(
            *[model.fn, *model.args], mesh="data=4,model=2", hardware="tpu_v5e", tactics=tactics
        )
        sides.append(side_of_plan(f"plan {number}", plan.done))
    text = comparison_page(comparison(sides), "Three plans")
    (folder / "several.html").write_text(text, "utf-8")
    return folder / "several.html"
