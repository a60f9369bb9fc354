"""A headless Chromium driven over its DevTools pipe: pages, what they request and complain about,
and what is in them."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ("--headless=new", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run", "--disable-extensions",
         "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
         "--force-color-profile=srgb")  # fmt: skip
SECONDS = 60


def find_browser() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """One tab. requests: addresses that it asked for; complaints: console errors, exceptions, policy violations."""

    def __init__(self, reading: int, writing: int) -> None:
        self.reading, self.writing = reading, writing
        self.buffer, self.number, self.session = b"", 0, ""
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A DevTools command and its result; events that arrive meanwhile are noted."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.writing, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            assert select.select([self.reading], [], [], SECONDS)[0], "the browser does not answer"
            block = os.read(self.reading, 1 << 16)
            assert block, "the browser has ended"
            self.buffer += block
        text, _, self.buffer = self.buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, event: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])
        elif method == "Runtime.exceptionThrown" or (
            method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning", "assert")
        ):
            self.complaints.append(json.dumps(event))
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.complaints.append(event["entry"]["text"])
        elif method == "Page.loadEventFired":
            self.loaded = True

    def open(
        self, path: Path, *, width: int = 1400, height: int = 900, dark: bool = False, scripts: bool = True
    ) -> None:
        """Load a file and wait until it is there."""
        self.requests.clear()
        self.complaints.clear()
        self.loaded = False
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        gone = self.call("Page.navigate", url=path.resolve().as_uri())
        assert "errorText" not in gone, gone
        begin = time.monotonic()
        while not self.loaded:
            assert time.monotonic() < begin + SECONDS, "the page does not load"
            self._read()

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page; also where the page's own scripts are off."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """A PNG of the page, or of what fits the window."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A browser that keeps its files in the folder `profile`, and its first page."""
    program = find_browser()
    assert program is not None
    command = [program, *FLAGS, f"--user-data-dir={profile}"]
    (to_read, theirs_out), (theirs_in, to_write) = os.pipe(), os.pipe()
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--no-sandbox")

    def at_3_and_4() -> None:
        kept_in, kept_out = os.dup(theirs_in), os.dup(theirs_out)
        os.dup2(kept_in, 3)
        os.dup2(kept_out, 4)

    with open(profile / "messages.txt", "wb") as messages:
        running = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=messages, stderr=messages, close_fds=False, preexec_fn=at_3_and_4
        )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Page(to_read, to_write)
    finally:
        os.close(to_read)
        os.close(to_write)
        _end(running)


def _end(running: subprocess.Popen[bytes]) -> None:
    """A browser whose pipe is closed ends by itself; if not, it is made to."""
    try:
        running.wait(10)
    except subprocess.TimeoutExpired:
        running.kill()
        running.wait()
