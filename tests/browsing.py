"""A page in a browser: what it shows, what is done to it, and a picture of it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

SHOTS = Path(os.environ.get("SCREENSHOTS", Path(__file__).parents[1] / "build" / "screenshots"))
"""Where pictures of the pages are left."""


class Opened:
    """A page that the browser shows."""

    def __init__(self, driver, path, width=1200, dark=False):
        self.driver = driver
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.width = width
        self.size(900)
        driver.get_log("performance")
        driver.get_log("browser")
        driver.get(path.as_uri())

    def size(self, height):
        told = {"width": self.width, "height": height, "deviceScaleFactor": 1}
        mobile = {"mobile": self.width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", told | mobile)

    def run(self, script, *args):
        return self.driver.execute_script(script, *args)

    def texts(self, selector):
        """The texts of elements, without those that are hidden."""
        shown = "[...document.querySelectorAll(arguments[0])].filter(e => e.offsetParent)"
        return self.run(f"return {shown}.map(e => e.textContent)", selector)

    def type(self, selector, text):
        """Puts a text into a field."""
        element = "const e = document.querySelector(arguments[0]); e.value = arguments[1];"
        self.run(f"{element} e.dispatchEvent(new Event('input'))", selector, text)

    def press(self, key):
        """Presses a key in the timeline."""
        event = "new KeyboardEvent('keydown', {key: arguments[0]})"
        self.run(f"document.getElementById('timeline-chart').dispatchEvent({event})", key)

    def shown(self):
        """The part of the step that the timeline shows."""
        data = self.run("return {...document.getElementById('timeline-chart').dataset}")
        return float(data["from"]), float(data["to"])

    def requests(self):
        events = (json.loads(e["message"])["message"] for e in self.driver.get_log("performance"))
        found = [e for e in events if e["method"] == "Network.requestWillBeSent"]
        return [e["params"]["request"]["url"] for e in found]

    def shot(self, name, height=2400):
        whole = self.run("return document.documentElement.scrollHeight")
        self.size(min(whole, height))
        time.sleep(0.3)
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.driver.save_screenshot(str(SHOTS / f"{name}.png"))
        self.size(900)
