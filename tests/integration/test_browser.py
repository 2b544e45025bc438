"""From a sweep to two of its runs side by side in MLflow's pages, as a user clicks through it.

It takes the pictures that README shows; ``pytest --write-images`` puts them where README looks for them.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.browser import Browser, chromium
from tests.integration.command import succeed
from tests.tracking.mlflow_server import free_port, wait_for_server

pytestmark = pytest.mark.slow

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SWEEP = (
    *("-m", "optimizer.lr=0.01,0.1", "seed=1,2", "model=mlp", "parallelism=single", "cluster.threads_per_worker=1"),
    *("train.epochs=5", "train.log_every=5", "tracking.system_metrics_every_s=0.5"),
)
PARENT = "sweep lr, seed"
COMPARED = ("lr=0.01 seed=2", "lr=0.1 seed=2")


@pytest.fixture
def images(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where pictures go: the repository's only when asked."""
    return IMAGES if request.config.getoption("--write-images") else tmp_path


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    pytest.importorskip("selenium", reason="selenium is not installed: it comes with the development dependencies")
    with chromium(tmp_path / "profile") as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Iterator[str]:
    """The address that ``runner ui`` names after a sweep in this folder."""
    succeed(tmp_path, *SWEEP)
    port = free_port()
    command = [sys.executable, "-m", "runner", "ui", "--port", str(port)]
    with (
        (tmp_path / "ui.log").open("w") as log,
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            address = re.search(r"http://127\.0\.0\.1:\S+", process.stdout.readline())
            assert address is not None
            wait_for_server(port, process)
            yield address[0]
        finally:
            process.terminate()


@pytest.mark.timeout(300)
def test_from_a_sweep_to_two_of_its_runs_side_by_side(browser: Browser, page: str, images: Path) -> None:
    browser.open(page)
    see_parent_and_children(browser, images / "ui-runs.png")
    see_curves_by_step_and_by_time(browser, images / "ui-compare.png")
    see_the_difference(browser)
    see_the_artifacts(browser)
    assert browser.hosts() == {"127.0.0.1"}


def see_parent_and_children(browser: Browser, picture: Path) -> None:
    """The sweep is one line that opens into its jobs, named by what was swept, with results as columns."""
    browser.click(component("mlflow.assistant.chat_panel.close"))
    browser.click(f"{row(PARENT)}//button")
    for name in ("lr=0.01 seed=1", "lr=0.1 seed=1", *COMPARED):
        browser.find(row(name))
    browser.click("//button[normalize-space()='Columns']")
    for column in ("test/accuracy", "test/loss", "train/loss", "Dataset", "Source", "Models"):
        browser.click(f"//span[@title='{column}']")
    browser.click("//h2[contains(., 'Runs')] | //h1[contains(., 'Runs')]")
    browser.wait_for_text("test/accuracy", "test/loss", "train/loss")
    browser.picture(picture)


def see_curves_by_step_and_by_time(browser: Browser, picture: Path) -> None:
    """Charts stand in sections, and the curves of two runs in one chart, over steps and over seconds."""
    browser.type("//*[@data-testid='search-box']", 'params.seed = "2"')
    browser.wait_for_end_of(row("lr=0.1 seed=1"))
    browser.click("//input[@name='runs-view-mode'][@value='CHART']/ancestor::label")
    browser.wait_for_text(
        "perf\n(2)", "test\n(2)", "train\n(4)", "System metrics\n(4)", *(f"{name} (test/loss)" for name in COMPARED)
    )
    browser.click("//*[@role='button' or self::button][starts-with(normalize-space(), 'perf')]")
    browser.picture(picture)
    browser.click(component("mlflow.charts.controls.global_chart_setup_dropdown"))
    browser.click("//*[starts-with(@role, 'menuitem')][contains(., 'Time (relative)')]")
    browser.wait_for_text("Relative Time")


def see_the_difference(browser: Browser) -> None:
    """Two runs are compared parameter by parameter."""
    for name in COMPARED:
        # A line has several pieces, and the name is in another one than the box; the box itself is transparent.
        browser.click(f"//*[@row-id={row(name)}/@row-id]//*[contains(@class, 'ag-checkbox-input-wrapper')]")
    browser.click("//button[normalize-space()='Compare']")
    browser.wait_for_text("Comparing 2 Runs from 1 Experiment", "optimizer.lr", *COMPARED)


def see_the_artifacts(browser: Browser) -> None:
    """The table of the jobs is on the sweep's page, the plots of a job are on its own."""
    browser.click(
        "//th[normalize-space()='Run ID:']/following-sibling::*//a | //td[.='Run ID:']/following-sibling::*//a"
    )
    browser.click("//*[@role='tab'][normalize-space()='Artifacts']")
    browser.click("//*[normalize-space(text())='plots']")
    browser.click("//*[normalize-space(text())='learning_curves.png']")
    browser.find("//img[starts-with(@src, 'blob:') or contains(@src, 'artifact')]")
    browser.click("//*[@role='tab'][normalize-space()='Overview']")
    browser.click(f"//a[normalize-space()='{PARENT}']")
    browser.wait_for_text("best test/accuracy", "finished")


def row(name: str) -> str:
    """XPath of a run's line in the list."""
    return f"//*[@role='row'][.//a[normalize-space()='{name}']]"


def component(identifier: str) -> str:
    """XPath of a part of MLflow's pages."""
    return f"//*[@data-component-id='{identifier}']"
