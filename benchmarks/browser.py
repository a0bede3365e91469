"""The system's Chromium without a window, driven over its debugging pipe: what a page shows, fetches and how fast.

Chromium reads commands of the DevTools protocol from descriptor 3 and writes answers and events to descriptor 4, each a
JSON text that ends in a zero byte (``--remote-debugging-pipe``). No driver, no port, no network.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from ..oracle.errors import Unsupported

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: Seconds for one answer. A start on a busy machine takes some.
PATIENCE = 60.0
_FLAGS = (
    "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--no-first-run", "--hide-scrollbars", "--force-color-profile=srgb", "--disable-background-networking",
    "--disable-component-update", "--host-resolver-rules=MAP * ~NOTFOUND", "about:blank",
)  # fmt: skip
#: Gives the two pipes the numbers that Chromium looks for.
_LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
_CODES = {"Tab": 9, "Enter": 13, " ": 32}


def chromium() -> str | None:
    """Path of the system's Chromium; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One running Chromium; a context that ends it. Raises Unsupported where there is none."""

    def __init__(self) -> None:
        path = chromium()
        if path is None:
            raise Unsupported(f"no Chromium: expected one of {', '.join(NAMES)} on the PATH; install chromium")
        self._home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, self._out = _pipe()
        self._in, theirs_out = _pipe()
        words = [sys.executable, "-c", _LAUNCH, str(theirs_in), str(theirs_out), path, *_FLAGS]
        self._process = subprocess.Popen(
            [*words, f"--user-data-dir={self._home.name}"],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._left = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._out)  # the end of its commands is the end of Chromium
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        self._home.cleanup()

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """The result of one command; events that come meanwhile are kept."""
        self._number += 1
        number = self._number
        told = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        os.write(self._out, json.dumps(told).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            for message in self._received(deadline, method):
                if message.get("id") != number:
                    self.events.append(message)
                elif "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                else:
                    found: dict[str, Any] = message["result"]
                    return found

    def processor_seconds(self) -> float:
        """Processor time of the processes that render pages; unlike the clock, it knows no other programs."""
        found = self.call("SystemInfo.getProcessInfo")["processInfo"]
        return sum(float(one["cpuTime"]) for one in found if one["type"] == "renderer")

    def _received(self, deadline: float, what: str) -> list[dict[str, Any]]:
        if not select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise RuntimeError(f"Chromium gave no answer to {what} in {PATIENCE:g} s")
        part = os.read(self._in, 1 << 20)
        if not part:
            raise RuntimeError(f"Chromium ended before it answered {what}")
        *texts, self._left = (self._left + part).split(b"\0")
        return [json.loads(text) for text in texts]

    def open(
        self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False, phone: bool = False
    ) -> Page:
        """A file in a tab of its own, loaded. ``width`` and ``height`` in CSS pixels."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Page(self, session, path, (width, height), dark, phone)


class Page:
    """A loaded file."""

    def __init__(
        self, browser: Browser, session: str, path: Path, size: tuple[int, int], dark: bool, phone: bool
    ) -> None:
        self._browser, self._session = browser, session
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        scale = 2 if phone else 1
        width, height = size
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        started = time.monotonic()
        self.call("Page.navigate", url=path.absolute().as_uri())
        while not self._loaded():
            if time.monotonic() - started > PATIENCE:
                raise RuntimeError(f"{path}: not loaded after {PATIENCE:g} s")
        self.seconds = time.monotonic() - started
        """From the command to open it until its scripts have run and it answers."""

    def _loaded(self) -> bool:
        return bool(self.evaluate("document.readyState === 'complete' && location.protocol === 'file:'"))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression, JSON-ready. Raises RuntimeError for what it throws."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in told:
            raise RuntimeError(f"{expression}: {told['exceptionDetails']}")
        return told["result"].get("value")

    def key(self, name: str) -> None:
        """Press and release Tab, Enter or the space bar."""
        text = {"Enter": "\r", " ": " "}.get(name)
        keys: dict[str, Any] = {"key": name, "code": name.replace(" ", "Space"), "windowsVirtualKeyCode": _CODES[name]}
        self.call("Input.dispatchKeyEvent", type="keyDown", **keys, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **keys)

    def write(self, text: str) -> None:
        """Type into what has the focus."""
        self.call("Input.insertText", text=text)

    def told(self, *methods: str) -> list[dict[str, Any]]:
        """Parameters of the events of these methods so far."""
        self.evaluate("0")  # what came before it has been read
        events = (one for one in self._browser.events if one.get("sessionId") == self._session)
        return [one["params"] for one in events if one["method"] in methods]

    def screenshot(self, path: Path) -> None:
        """What is in the window, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


def _pipe() -> tuple[int, int]:
    """A pipe whose numbers are above those that the child gives away."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return high[0], high[1]
