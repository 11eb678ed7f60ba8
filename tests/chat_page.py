"""The chat that `docs/http.md` shows to its readers, as a page in tabs."""

from __future__ import annotations

import itertools
import json
import re
import uuid
from typing import Any
from urllib.parse import urlencode

from chromium import Chromium, Tab
from instance import CHECKOUT, Instance

_SHOWN = "[...document.querySelectorAll('li')].map((item) => item.textContent)"
_STATUS = "document.querySelector('output')?.textContent"
_PROPS = 'JSON.parse(new URLSearchParams(location.search).get("props"))'


def documented_page(url: str) -> str:
    """Return the page of `docs/http.md`, for an instance at `url` and with the options that its address names."""
    found = re.findall(r"```jsx\n(.*?)```", (CHECKOUT / "docs" / "http.md").read_text(), re.DOTALL)
    source = str(*found)
    for shown, served in (("http://127.0.0.1:8000", url), ('{ harness: "claude-code" }', _PROPS)):
        assert source.count(shown) == 1
        source = source.replace(shown, served)
    return source


class ChatTab(Tab):
    """A tab with the chat."""

    def shows(self, *texts: str) -> None:
        """Wait until the messages are these."""
        self.wait_for(_SHOWN, list(texts))

    def is_at(self, status: str) -> None:
        """Wait for a status, or for the message of an error."""
        self.wait_for(_STATUS, status)

    def send(self, text: str) -> None:
        """Write a message and send it."""
        self.call("fill", "input", text)
        self.call("click", "text=Send")

    def stop(self) -> None:
        """Press the page's own button."""
        self.call("click", "text=Stop")


class Thread:
    """One thread in any number of tabs, all of them in one window."""

    def __init__(self, browser: Chromium) -> None:
        self.browser = browser
        self.id = f"thread-{uuid.uuid4().hex[:12]}"
        self.tabs: list[ChatTab] = []
        self._numbers = itertools.count(1)
        browser.call("browser", "newContext", name=self.id)

    def tab(self, **props: Any) -> ChatTab:
        """Open the page once more; `props` are what it forwards with each message."""
        url = f"{self.browser.origin}/chat?{urlencode({'thread': self.id, 'props': json.dumps(props)})}"
        self.tabs.append(ChatTab(self.browser, self.id, f"{self.id}.{next(self._numbers)}", url))
        return self.tabs[-1]

    def runs(self, instance: Instance) -> list[dict[str, Any]]:
        """Return the records of its runs, newest first."""
        answer = instance.http.get("/api/runs", params={"threadId": self.id})
        runs: list[dict[str, Any]] = answer.raise_for_status().json()["runs"]
        return runs

    def close(self) -> None:
        """Close the window."""
        self.browser.call(self.id, "close")
