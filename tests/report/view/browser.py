"""Headless Chromium through chromedriver, by the protocol of W3C's WebDriver: no package is needed."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--force-device-scale-factor=1",
]  # fmt: skip
NEEDED = [tool for tool in ("chromium", "chromedriver") if shutil.which(tool) is None]
needs_browser = pytest.mark.skipif(bool(NEEDED), reason=f"needs {' and '.join(NEEDED)}: make test-view installs them")


class Browser:
    """One window of a browser."""

    def __init__(self, driver: str, profile: Path) -> None:
        self._driver = driver
        options = {"binary": shutil.which("chromium"), "args": [*FLAGS, f"--user-data-dir={profile}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}, "pageLoadStrategy": "normal"}
        self._session = ""
        self._session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        self.size(1280, 900)

    def _ask(self, method: str, path: str, content: Any = None) -> Any:
        where = f"{self._driver}{f'/session/{self._session}' if self._session else ''}{path}"
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(where, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from error

    def size(self, width: int, height: int) -> None:
        """Set the window's outer size, in pixels."""
        self._ask("POST", "/window/rect", {"width": width, "height": height})

    def open(self, address: str) -> None:
        """Load a page, and wait until it has drawn itself; what is already loaded is loaded again."""
        self._ask("POST", "/url", {"url": "about:blank"})
        self._ask("POST", "/url", {"url": address})
        self.until("return document.documentElement.dataset.ready === '1'")
        self.settled()

    def visit(self, address: str) -> None:
        """Load a page that is not one of `gspo view`."""
        self._ask("POST", "/url", {"url": address})

    def led_to(self, end: str, seconds: float = 20) -> None:
        """Wait until the address has this end: a script would be lost when its page gives way to the next one."""
        until = time.monotonic() + seconds
        while not (address := str(self._ask("GET", "/url"))).endswith(end):
            assert time.monotonic() < until, f"still at {address}"
            time.sleep(0.05)

    def settled(self) -> None:
        """Wait until no view is being drawn."""
        self.until("return !document.getElementById('main').hasAttribute('aria-busy')")

    def go(self, address: str) -> None:
        """Follow a link within the page: ``#view?name=value``."""
        self.run("location.hash = arguments[0]; await new Promise((r) => setTimeout(r, 50));", address)
        self.settled()

    def run(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript, which may await, and return what it returns."""
        body = f"const done = arguments[arguments.length - 1]; (async function() {{ {script} }})"
        body += ".apply(null, arguments).then((value) => done({ value }), (error) => done({ error: String(error) }));"
        outcome = self._ask("POST", "/execute/async", {"script": body, "args": list(arguments)})
        assert "error" not in outcome, f"{outcome['error']} in {script}"
        return outcome.get("value")

    def until(self, script: str, seconds: float = 20) -> None:
        """Wait until JavaScript returns true."""
        end = time.monotonic() + seconds
        while not self.run(script):
            assert time.monotonic() < end, f"still not: {script}"
            time.sleep(0.05)

    def text(self, selector: str = "main") -> str:
        """Return the text that a person sees in an element."""
        return str(self.run("return document.querySelector(arguments[0]).innerText", selector))

    def texts(self, selector: str) -> list[str]:
        """Return the text of each element."""
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
        return [str(text) for text in self.run(script, selector)]

    def boxes(self, selector: str, side: str) -> list[float]:
        """Return a measure of each element's box: ``left``, ``width`` or ``height``, in pixels."""
        script = (
            "return [...document.querySelectorAll(arguments[0])].map((e) => e.getBoundingClientRect()[arguments[1]])"
        )
        return [float(size) for size in self.run(script, selector, side)]

    def count(self, selector: str) -> int:
        """Return the number of elements."""
        return int(self.run("return document.querySelectorAll(arguments[0]).length", selector))

    def key(self, key: str) -> None:
        """Press and release a key where the focus is."""
        actions = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self._ask("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})
        self.run("await new Promise((r) => setTimeout(r, 60));")
        self.settled()

    def drag(self, selector: str, start: float, end: float) -> None:
        """Press the pointer over an element at a share of its width, move it to another share, and release it."""
        x, y, width = self.run(
            "const e = document.querySelector(arguments[0]); e.scrollIntoView({ block: 'center' });"
            "const box = e.getBoundingClientRect(); return [box.left, box.top + box.height / 2, box.width];",
            selector,
        )
        moves = [{"type": "pointerMove", "x": round(x + share * width), "y": round(y), "duration": 0}
                 for share in (start, (start + end) / 2, end)]  # fmt: skip
        actions = [moves[0], {"type": "pointerDown", "button": 0}, *moves[1:], {"type": "pointerUp", "button": 0}]
        self._ask("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": actions}]})
        self.run("await new Promise((r) => setTimeout(r, 60));")
        self.settled()

    def screenshot(self, path: Path) -> None:
        """Save what the window shows as a PNG file."""
        path.write_bytes(base64.b64decode(self._ask("GET", "/screenshot")))

    def complaints(self) -> list[str]:
        """Return what the console has said since the last call."""
        return [entry["message"] for entry in self._ask("POST", "/se/log", {"type": "browser"})]

    def close(self) -> None:
        """Close the window."""
        with contextlib.suppress(OSError, AssertionError):
            self._ask("DELETE", "")


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Start a driver and a browser; both end with the block."""
    profile = Path(tempfile.mkdtemp(prefix="view-browser-"))
    driver = subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert driver.stdout is not None
        line = next(line for line in driver.stdout if "started successfully on port" in line)
        window = Browser(f"http://127.0.0.1:{line.rstrip().rstrip('.').rsplit(' ', 1)[1]}", profile)
        try:
            yield window
        finally:
            window.close()
    finally:
        driver.terminate()
        driver.wait(10)
        if driver.stdout is not None:
            driver.stdout.close()
        shutil.rmtree(profile, ignore_errors=True)
