"""A headless Chromium, driven over its debugging pipe: no driver, no package, no network."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
PATIENCE = 60.0


class Browser:
    """One page, with its console errors, exceptions and policy violations, and the addresses it asked for."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        reads, self._send = os.pipe()
        self._receive, writes = os.pipe()
        # Chromium reads commands from descriptor 3 and writes answers to 4.
        shell = f'exec "$@" 3<&{reads} 4>&{writes}'
        command = ["bash", "-c", shell, "chromium", CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, pass_fds=(reads, writes), stdin=quiet, stdout=quiet, stderr=quiet)
        os.close(reads)
        os.close(writes)
        self._buffer, self._number, self._session = b"", 0, ""
        self.troubles: list[str] = []
        self.requests: list[str] = []
        self.loaded = 0
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._send)
        os.close(self._receive)
        self._process.terminate()
        self._process.wait(PATIENCE)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer; events on the way are noted."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._receive], [], [], max(0.0, until - time.monotonic()))
            assert ready, "Chromium does not answer"
            received = os.read(self._receive, 1 << 20)
            assert received, "Chromium ended"
            self._buffer += received
        first, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, told: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self.loaded += 1
        elif event == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.troubles.append(json.dumps(told["exceptionDetails"]))
        elif event == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.troubles.append(told["entry"]["text"])
        elif event == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.troubles.append(json.dumps(told["args"]))

    def open(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Show a file, with a window of this width and a colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        before = self.loaded
        self.call("Page.navigate", url=path.resolve().as_uri())
        while self.loaded == before:
            self._next()

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def middle(self, selector: str) -> tuple[float, float]:
        """Where an element is on the screen, after scrolling to it."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{found}.scrollIntoView({{block: 'center'}})")
        box = self.value(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({found}.getBoundingClientRect())")
        return float(box[0]), float(box[1])

    def click(self, selector: str) -> None:
        """A real click in the middle of an element."""
        x, y = self.middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def hover(self, selector: str) -> None:
        x, y = self.middle(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str, *, text: str = "") -> None:
        """A key, on whatever has the focus."""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG file."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))
