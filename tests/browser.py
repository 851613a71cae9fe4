"""Headless Chromium through chromedriver's own protocol (W3C WebDriver over HTTP), without a library."""
from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"         # the key under which WebDriver names an element
ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--force-color-profile=srgb", "--hide-scrollbars")


def missing() -> str:
    """Why there is no browser to test with; empty where there is one."""
    if find_chromium() is None:
        return "no Chromium (apt-get install chromium chromium-driver)"
    if shutil.which("chromedriver") is None:
        return "no chromedriver (apt-get install chromium-driver)"
    return ""


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One window. Use it in a `with` statement."""

    def __init__(self, width: int = 1200, height: int = 900):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"http://127.0.0.1:{free.getsockname()[1]}"
        port = self.address.rpartition(":")[2]
        self.driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL)
        self.window = (width, height)

    def __enter__(self) -> Browser:
        for _ in range(200):
            with suppress(OSError):
                if self.call("GET", "/status")["ready"]:
                    break
            time.sleep(0.05)
        width, height = self.window
        arguments = [*ARGUMENTS, f"--window-size={width},{height}"]
        wanted = {"browserName": "chrome", "goog:loggingPrefs": {"browser": "ALL"},
                  "goog:chromeOptions": {"args": arguments, "binary": find_chromium()}}
        answer = self.call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"/session/{answer['sessionId']}"
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):
            self.call("DELETE", self.session)
        self.driver.terminate()
        self.driver.wait(10)

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, method=method,
                                         headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def open(self, path: Path) -> None:
        self.call("POST", f"{self.session}/url", {"url": path.resolve().as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that a piece of JavaScript returns."""
        return self.call("POST", f"{self.session}/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector: str) -> str:
        """The element's name. Raises HTTPError where there is none."""
        found = self.call("POST", f"{self.session}/element", {"using": "css selector", "value": selector})
        return str(found[ELEMENT])

    def click(self, selector: str) -> None:
        self.call("POST", f"{self.session}/element/{self.find(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        self.call("POST", f"{self.session}/element/{self.find(selector)}/value", {"text": text})

    def press(self, key: str) -> None:
        """A key on whatever has the focus."""
        actions = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self.act({"type": "key", "id": "keyboard", "actions": actions})

    def hover(self, selector: str) -> None:
        """Move the mouse over the middle of an element."""
        self.run("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", selector)
        origin = {ELEMENT: self.find(selector)}
        self.act({"type": "pointer", "id": "mouse", "actions": [
            {"type": "pointerMove", "duration": 0, "x": 0, "y": 0, "origin": origin}]})

    def act(self, source: dict[str, Any]) -> None:
        self.call("POST", f"{self.session}/actions", {"actions": [source]})

    def console(self) -> list[str]:
        """What the page said since the last call, warnings and errors."""
        entries = self.call("POST", f"{self.session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("WARNING", "SEVERE")]

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("GET", f"{self.session}/screenshot")))
