"""A headless Chromium, driven by chromedriver over HTTP (W3C WebDriver)."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.conftest import free_port, wait_for

PROGRAMS: Final = ("chromium", "chromedriver")
SECONDS: Final = 60.0
_OPTIONS: Final = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")


class Browser:
    """One window of a browser.

    Args:
        address: of chromedriver.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        wanted = {
            "goog:chromeOptions": {"args": [*_OPTIONS], "binary": shutil.which("chromium")},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        answer = self._call("POST", "/session", capabilities={"alwaysMatch": wanted})
        self._session = f"/session/{answer['sessionId']}"

    def _call(self, method: str, path: str, **words: Any) -> Any:
        body = json.dumps(words).encode() if method == "POST" else None
        request = Request(self._address + path, body, {"Content-Type": "application/json"}, method=method)  # noqa: S310
        try:
            with urlopen(request, timeout=SECONDS) as answer:  # noqa: S310 - of this host
                return json.load(answer)["value"]
        except HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.read().decode()[:500]}") from error

    def open(self, url: str) -> None:
        self._call("POST", f"{self._session}/url", url=url)

    def run(self, script: str, *arguments: Any) -> Any:
        """What a function body in JavaScript returns for these arguments."""
        return self._call("POST", f"{self._session}/execute/sync", script=script, args=[*arguments])

    def resize(self, width: int, height: int) -> None:
        """The size of the page in CSS pixels, also below the least width of a window."""
        words = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", **words)

    def command(self, name: str, **words: Any) -> Any:
        """What a command of Chromium's own protocol returns."""
        return self._call("POST", f"{self._session}/goog/cdp/execute", cmd=name, params=words)

    def requested(self) -> set[str]:
        """The addresses that the browser has asked for since the last call."""
        entries = self._call("POST", f"{self._session}/se/log", type="performance")
        messages = (json.loads(entry["message"])["message"] for entry in entries)
        return {each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"}

    def complaints(self) -> list[str]:
        """Errors and warnings of the console since the last call."""
        return [entry["message"] for entry in self._call("POST", f"{self._session}/se/log", type="browser")]

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write a PNG of what is seen, or of the whole page."""
        taken = self.command("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(taken["data"]))

    def close(self) -> None:
        self._call("DELETE", self._session)


@contextmanager
def open_browser(log: Path) -> Iterator[Browser]:
    """A browser with one window; chromedriver writes to ``log``."""
    port = free_port()
    with log.open("wb") as output:
        driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=output, stderr=output)  # noqa: S607
    try:
        wait_for(lambda: b"successfully" in log.read_bytes(), "chromedriver")
        browser = Browser(f"http://127.0.0.1:{port}")
        try:
            yield browser
        finally:
            browser.close()
    finally:
        driver.terminate()
        driver.wait(SECONDS)
