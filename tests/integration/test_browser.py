"""A user's path through MLflow's pages, from a sweep to the comparison of two of its runs.

The test takes the screenshots of the README; with ``pytest --write-images`` it writes them to ``docs/images``.
"""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from runner.commands.ui import HOST
from tests.integration.command import succeed
from tests.tracking.mlflow_server import free_port, wait_for_server

LIMIT_S = 60.0
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_ARGUMENTS = (
    "--headless=new",
    # Chromium does not run as root with a sandbox. The test opens only pages of this project.
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--window-size=1500,1150",
    "--force-prefers-reduced-motion",
    f"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE {HOST}",
)


class Browser:
    """One page of a browser. Methods find elements by XPath and wait for them, because the page is built gradually."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def open(self, url: str) -> None:
        """Go to a page, without waiting for its elements."""
        self._driver.get(url)

    def find(self, xpath: str) -> Any:
        """Wait until a visible element matches ``xpath``, and return the first such element."""
        found: list[Any] = []

        def visible() -> bool:
            found[:] = [each for each in self._driver.find_elements("xpath", xpath) if each.is_displayed()]
            return bool(found)

        self._wait(visible, xpath)
        return found[0]

    def click(self, xpath: str) -> None:
        """Click on an element as soon as no other element covers it."""
        from selenium.common.exceptions import WebDriverException

        def clicked() -> bool:
            try:
                self.find(xpath).click()
            except WebDriverException:
                return False
            return True

        self._wait(clicked, f"a click on {xpath}")

    def choose(self, xpath: str) -> None:
        """Choose an item of a nested menu, which can be below the visible part of the menu."""
        self._driver.execute_script("arguments[0].click()", self.find(xpath))

    def type(self, xpath: str, text: str) -> None:
        """Write into a field and press Enter."""
        self.find(xpath).send_keys(text + "\ue007")

    def wait_for_text(self, *texts: str) -> None:
        """Wait until the page shows all texts."""
        self._wait(lambda: all(text in self.text() for text in texts), f"text {texts} on the page")

    def wait_for_end_of(self, xpath: str) -> None:
        """Wait until no element matches ``xpath``."""
        self._wait(lambda: not self._driver.find_elements("xpath", xpath), f"the end of {xpath}")

    def text(self) -> str:
        """Return the visible text of the page."""
        return str(self._driver.execute_script("return document.body.innerText"))

    def picture(self, path: Path) -> None:
        """Remove the focus, wait until two successive screenshots are equal, and write the screenshot as PNG."""
        self._driver.execute_script("document.activeElement.blur()")
        seen = [b""]

        def still() -> bool:
            seen.append(self._driver.get_screenshot_as_png())
            return seen[-1] == seen[-2]

        self._wait(still, "a page that stands still")
        path.write_bytes(seen[-1])

    def hosts(self) -> set[str]:
        """Return every host to which a page sent a request."""
        messages = (json.loads(entry["message"])["message"] for entry in self._driver.get_log("performance"))
        urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        # Chromium's own pages send requests to chrome:// addresses.
        return {str(urlsplit(url).hostname) for url in urls if url.startswith(("http", "ws"))}

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        from selenium.common.exceptions import StaleElementReferenceException

        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                if condition():
                    return
            except StaleElementReferenceException:  # the page was rebuilt after the element was found
                pass
            assert time.monotonic() < deadline, f"timed out waiting for {what}; the page reads:\n{self.text()[:3000]}"
            time.sleep(0.1)


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """Start a browser with an empty profile; skip the test, with the reason, if Chromium is not installed."""
    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no Chromium with its chromedriver on this machine (Debian: chromium, chromium-driver)")
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = program
    for argument in (*_ARGUMENTS, f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    # If both programs are given, Selenium neither searches for them nor downloads them.
    running = Chrome(options=options, service=Service(driver))
    try:
        yield Browser(running)
    finally:
        running.quit()


IMAGES = Path(__file__).parents[2] / "docs" / "images"
SWEEP = (
    *("-m", "optimizer.lr=0.01,0.1", "seed=1,2", "model=mlp", "parallelism=single", "cluster.threads_per_worker=1"),
    *("train.epochs=5", "train.log_every=5", "tracking.log_model=last", "hydra.sweep.dir=digits"),
)
PARENT = "sweep digits: lr, seed"
COMPARED = ("lr=0.01 seed=2", "lr=0.1 seed=2")


@pytest.fixture
def images(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the folder for screenshots: with ``--write-images`` that of the repository, otherwise a temporary one."""
    return IMAGES if request.config.getoption("--write-images") else tmp_path


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    pytest.importorskip("selenium", reason="selenium is not installed: it comes with the development dependencies")
    with chromium(tmp_path / "profile") as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Iterator[str]:
    """Yield the address that ``runner ui`` prints after a sweep in the temporary folder."""
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


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_pages_lead_from_a_sweep_to_the_comparison_of_two_runs(browser: Browser, page: str, images: Path) -> None:
    browser.open(page)
    see_parent_and_children(browser, images / "ui-runs.png")
    see_curves_by_step_and_by_time(browser, images / "ui-compare.png")
    see_the_difference(browser)
    see_the_artifacts(browser)
    assert browser.hosts() == {"127.0.0.1"}


def see_parent_and_children(browser: Browser, picture: Path) -> None:
    """Require that the row of the sweep expands to rows of its jobs, named by swept values, with columns of results."""
    browser.click(component("mlflow.assistant.chat_panel.close"))
    browser.click(f"{row(PARENT)}//button")
    for name in ("lr=0.01 seed=1", "lr=0.1 seed=1", *COMPARED):
        browser.find(row(name))
    browser.click("//button[normalize-space()='Columns']")
    browser.wait_for_text("digits (", "network")  # the dataset and the model
    for column in ("best/test/accuracy", "test/accuracy", "train/loss", "Dataset", "Source", "Models"):
        browser.click(f"//span[@title='{column}']")
    browser.click("//h2[contains(., 'Runs')] | //h1[contains(., 'Runs')]")
    browser.wait_for_text("best/test/accuracy", "train/loss")
    browser.picture(picture)
    see_the_groups(browser)


def see_the_groups(browser: Browser) -> None:
    """Require that the repetitions of a seed are a group."""
    group = "//*[starts-with(@role, 'menuitem')][normalize-space()='runner.group']"
    browser.click("//button[normalize-space()='Group by']")
    browser.choose(group)
    browser.wait_for_text("Group: lr=0.01 (digits)", "Group: lr=0.1 (digits)", "(average)")
    browser.click("//button[normalize-space()='Group by: runner.group']")
    browser.choose(group)
    browser.wait_for_end_of("//*[contains(text(), '(average)')]")


def see_curves_by_step_and_by_time(browser: Browser, picture: Path) -> None:
    """Require that charts are grouped into sections and show two runs by step, by relative time or by seconds."""
    browser.type("//*[@data-testid='search-box']", 'params.seed = "2"')
    browser.wait_for_end_of(row("lr=0.1 seed=1"))
    browser.click("//input[@name='runs-view-mode'][@value='CHART']/ancestor::label")
    browser.wait_for_text("best/test\n(2)", "test\n(2)", "train\n(6)", "workers\n(2)", "Model metrics\n(3)")
    # Charts below the window are not drawn.
    browser.click("//*[@role='button' or self::button][starts-with(normalize-space(), 'best/test')]")
    browser.wait_for_text(*(f"{name} (test/loss)" for name in COMPARED))
    menu = component("mlflow.charts.controls.global_chart_setup_dropdown")
    item = "//*[starts-with(@role, 'menuitem')][normalize-space()='{}']"
    browser.click(menu)
    browser.click(item.format("Time (relative)"))
    browser.wait_for_text("Relative Time")
    browser.click(menu)
    browser.click(item.format("Metric"))
    browser.choose(item.format("train/seconds"))
    browser.wait_for_end_of("//*[normalize-space(text())='Relative Time']")
    browser.picture(picture)


def see_the_difference(browser: Browser) -> None:
    """Require that two runs are compared parameter by parameter."""
    for name in COMPARED:
        # The name and the checkbox of a run are in different elements of its row, and the checkbox is transparent.
        browser.click(f"//*[@row-id={row(name)}/@row-id]//*[contains(@class, 'ag-checkbox-input-wrapper')]")
    browser.click("//button[normalize-space()='Compare']")
    browser.wait_for_text("Comparing 2 Runs from 1 Experiment", "optimizer.lr", *COMPARED)


def see_the_artifacts(browser: Browser) -> None:
    """Require that the sweep's page shows the table of the jobs, and that a job's page shows its plots."""
    browser.click(
        "//th[normalize-space()='Run ID:']/following-sibling::*//a | //td[.='Run ID:']/following-sibling::*//a"
    )
    browser.click("//*[@role='tab'][normalize-space()='Artifacts']")
    browser.click("//*[normalize-space(text())='plots']")
    browser.click("//*[normalize-space(text())='learning_curves.png']")
    browser.find("//img[starts-with(@src, 'blob:') or contains(@src, 'artifact')]")
    browser.click("//*[@role='tab'][normalize-space()='Overview']")
    browser.click(f"//a[normalize-space()='{PARENT}']")
    browser.wait_for_text("test_accuracy", "finished", "jobs_finished", "0.01, 0.1")


def row(name: str) -> str:
    """Return the XPath of a run's row in the list."""
    return f"//*[@role='row'][.//a[normalize-space()='{name}']]"


def component(identifier: str) -> str:
    """Return the XPath of the element of MLflow's pages with this component identifier."""
    return f"//*[@data-component-id='{identifier}']"
