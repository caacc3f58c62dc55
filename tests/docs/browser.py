"""A headless Chromium, driven by the DevTools protocol through a pair of pipes: it needs no package, no port and no network."""

from __future__ import annotations

import base64
import json
import os
import select
import shlex
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 60.0  # seconds for one answer


def installed() -> str | None:
    """The browser's command, where there is one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page of a browser, as a context manager.

    What the page logs as an error, and what fails to load, is in `complaints` until the next `open`.
    """

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self._number = 0
        self._rest = b""

    def __enter__(self) -> Browser:
        self._profile = tempfile.mkdtemp(prefix="sgdynamics-browser-")
        read_by_it, self._out = os.pipe()
        self._in, written_by_it = os.pipe()
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--no-first-run",
        ]
        flags += [
            "--disable-background-networking",
            "--disable-component-update",
            "--allow-file-access-from-files",
            "--mute-audio",
        ]
        command = [
            str(installed()),
            *flags,
            f"--user-data-dir={self._profile}",
            "--remote-debugging-pipe",
            "about:blank",
        ]
        # it reads from 3 and writes to 4
        line = f"exec 3<&{read_by_it} 4>&{written_by_it}; exec {shlex.join(command)}"
        ends = (read_by_it, written_by_it)
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", line],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in ends:
            os.close(end)
        self._session: str | None = None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)
        shutil.rmtree(self._profile, ignore_errors=True)

    def _message(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._in], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError(f"the browser has not answered for {PATIENCE:.0f} s")
            more = os.read(self._in, 1 << 20)
            if not more:
                raise RuntimeError(
                    f"the browser {installed()} has ended by itself: try it from a shell, with --headless --dump-dom about:blank"
                )
            self._rest += more
        one, _, self._rest = self._rest.partition(b"\0")
        return json.loads(one)

    def _heed(self, message: dict[str, Any]) -> None:
        told, name = message.get("params", {}), message.get("method")
        if name == "Runtime.exceptionThrown":
            self.complaints.append(
                "script: "
                + told["exceptionDetails"].get("exception", {}).get("description", "an exception")
            )
        elif name == "Runtime.consoleAPICalled" and told["type"] in ("error", "assert"):
            self.complaints.append(
                "console: "
                + " ".join(
                    str(one.get("value", one.get("description", ""))) for one in told["args"]
                )
            )
        elif name == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.complaints.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
        elif name == "Network.loadingFailed" and not told.get("canceled"):
            self.complaints.append(f"not loaded: {told['type']} {told['errorText']}")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to one command of the protocol."""
        self._number += 1
        sent = {"id": self._number, "method": method, "params": params} | (
            {"sessionId": self._session} if self._session else {}
        )
        os.write(self._out, json.dumps(sent).encode() + b"\0")
        return self._until(lambda message: message.get("id") == self._number, method)

    def _until(self, wanted: Any, what: str) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while True:
            message = self._message(until)
            if wanted(message):
                if "error" in message:
                    raise RuntimeError(f"{what}: {message['error']}")
                return message.get("result", {})
            self._heed(message)

    def size(self, width: int, height: int = 900) -> None:
        """The window, in CSS pixels."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def open(self, url: str) -> None:
        """Load a page, with its fonts."""
        self.complaints.clear()
        self.ask("Page.navigate", url=url)
        self._until(lambda message: message.get("method") == "Page.loadEventFired", url)
        self.run("document.fonts.ready.then(() => true)")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(
                answer["exceptionDetails"]
                .get("exception", {})
                .get("description", "the script failed")
            )
        return answer["result"].get("value")

    def picture(self, path: Path, selector: str | None = None) -> None:
        """A PNG of the window, or of one element of the page, with a little room around it."""
        clip: dict[str, Any] = {}
        if selector is not None:
            script = "(({x, y, width, height}) => ({x, y: y + scrollY, width, height}))(document.querySelector(%s).getBoundingClientRect())"
            box = self.run(script % json.dumps(selector))
            clip = {
                "clip": {
                    "x": box["x"] - 8,
                    "y": box["y"] - 8,
                    "width": box["width"] + 16,
                    "height": box["height"] + 16,
                    "scale": 1,
                }
            }
        shot = self.ask(
            "Page.captureScreenshot",
            format="png",
            captureBeyondViewport=selector is not None,
            **clip,
        )
        path.write_bytes(base64.b64decode(shot["data"]))
