"""A headless Chromium that reaches this machine and no other, driven through Debian's chromedriver."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from runner.commands.ui import HOST

LIMIT_S = 60.0
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_ARGUMENTS = (
    "--headless=new",
    # A root user has no other way; every page that is opened is ours.
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--window-size=1500,1150",
    "--force-prefers-reduced-motion",
    f"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE {HOST}",
)


class Browser:
    """One page. Elements are named by XPath, and waited for: a page is built while it is looked at."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def open(self, url: str) -> None:
        """Go to a page; what has been built of it is another question."""
        self._driver.get(url)

    def find(self, xpath: str) -> Any:
        """The first visible element of this kind, waited for."""
        found: list[Any] = []

        def visible() -> bool:
            found[:] = [each for each in self._driver.find_elements("xpath", xpath) if each.is_displayed()]
            return bool(found)

        self._wait(visible, xpath)
        return found[0]

    def click(self, xpath: str) -> None:
        """Click on an element as soon as nothing lies over it."""
        from selenium.common.exceptions import WebDriverException

        def clicked() -> bool:
            try:
                self.find(xpath).click()
            except WebDriverException:
                return False
            return True

        self._wait(clicked, f"a click on {xpath}")

    def type(self, xpath: str, text: str) -> None:
        """Write into a field and press Enter."""
        self.find(xpath).send_keys(text + "\ue007")

    def wait_for_text(self, *texts: str) -> None:
        """Wait until all of this can be read on the page."""
        self._wait(lambda: all(text in self.text() for text in texts), f"text {texts} on the page")

    def wait_for_end_of(self, xpath: str) -> None:
        """Wait until no such element is there any more."""
        self._wait(lambda: not self._driver.find_elements("xpath", xpath), f"the end of {xpath}")

    def text(self) -> str:
        """What can be read on the page."""
        return str(self._driver.execute_script("return document.body.innerText"))

    def picture(self, path: Path) -> None:
        """Write what is seen as PNG, without a pointer over anything, once it has stood still for two looks."""
        self._driver.execute_script("document.activeElement.blur()")
        seen = [b""]

        def still() -> bool:
            seen.append(self._driver.get_screenshot_as_png())
            return seen[-1] == seen[-2]

        self._wait(still, "a page that stands still")
        path.write_bytes(seen[-1])

    def hosts(self) -> set[str]:
        """Every host that a page has asked for something."""
        messages = (json.loads(entry["message"])["message"] for entry in self._driver.get_log("performance"))
        urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        # Chromium's own pages ask chrome://.
        return {str(urlsplit(url).hostname) for url in urls if url.startswith(("http", "ws"))}

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        from selenium.common.exceptions import StaleElementReferenceException

        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                if condition():
                    return
            except StaleElementReferenceException:  # the page was rebuilt between finding and asking
                pass
            assert time.monotonic() < deadline, f"never came: {what}; the page reads:\n{self.text()[:3000]}"
            time.sleep(0.1)


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile; skips the test, with the reason, where there is none."""
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
    # With both programs named nothing is looked for, let alone downloaded.
    running = Chrome(options=options, service=Service(driver))
    try:
        yield Browser(running)
    finally:
        running.quit()
