"""Chromium without a window, steered over its debugging pipe: no package is needed for it."""

from __future__ import annotations

import base64
import io
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_browser() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page of a browser. `with Browser(path) as browser`."""

    def __init__(self, path: str, width: int = 1200, height: int = 800) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        commands, self._send = os.pipe()
        self._receive, replies = os.pipe()
        # The browser reads commands from descriptor 3 and answers on 4.
        script = f'exec "$0" "$@" 3<&{commands} 4>&{replies}'
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
        options += [f"--user-data-dir={self._profile.name}", f"--window-size={width},{height}", "about:blank"]
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", script, path, *options],
            pass_fds=(commands, replies),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(replies)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._send)
        os.close(self._receive)
        self._process.terminate()
        self._process.wait(20)
        self._profile.cleanup()

    def call(self, method: str, **parameters) -> dict:
        """The result of one command of the DevTools protocol."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def _next(self) -> dict:
        while b"\0" not in self._buffer:
            part = os.read(self._receive, 1 << 20)
            assert part, "the browser went away"
            self._buffer += part
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def open(self, path: Path) -> None:
        """Show the file, and wait until it is there."""
        self.call("Page.enable")
        self.call("Page.navigate", url=path.as_uri())
        self.evaluate(
            "new Promise(done => document.readyState == 'complete' ? done() : addEventListener('load', done))"
        )

    def evaluate(self, script: str):
        """The value of an expression in the page; promises are waited for."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def point(self, x: float, y: float) -> None:
        """Move the mouse there."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self) -> np.ndarray:
        """[height,width,3] uint8."""
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
