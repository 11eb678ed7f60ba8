"""The chat that `docs/http.md` shows to its readers, as a page in tabs."""

from __future__ import annotations

import itertools
import json
import re
import uuid
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

from chromium import Chromium, Tab
from instance import CHECKOUT, Instance

_SHOWN = "[...document.querySelectorAll('li')].map((item) => item.textContent)"
_STATUS = "document.querySelector('output')?.textContent"
_AROUND = """
const { url, run: runId } = Object.fromEntries(new URLSearchParams(location.search));
window.shown = [];
const show = (chunk, id) => window.shown.push({ ...chunk, id });
const ended = () => { window.ended = true; };
"""
_URL = 'new URLSearchParams(location.search).get("url")'
_PROPS = 'JSON.parse(new URLSearchParams(location.search).get("props"))'


def documented(language: str, *served: tuple[str, str]) -> str:
    """Return the only listing of `docs/http.md` in that language; `served` tells what is there, and what instead."""
    found = re.findall(rf"```{language}\n(.*?)```", (CHECKOUT / "docs" / "http.md").read_text(), re.DOTALL)
    assert len(found) == 1
    source = str(found[0])
    for shown, instead in served:
        assert source.count(shown) == 1
        source = source.replace(shown, instead)
    return source


def chat_page(*served: tuple[str, str]) -> str:
    """Return the documented chat; its address names the instance, and the options."""
    return documented(
        "jsx", ('"http://127.0.0.1:8000/api/chat"', _URL), ('{ harness: "claude-code" }', _PROPS), *served
    )


def stream_page(*served: tuple[str, str]) -> str:
    """Return a page around the documented EventSource, which keeps what it was shown in `window.shown`."""
    return _AROUND + documented("js", *served)


class ChatTab(Tab):
    """A tab with the chat."""

    def shows(self, *texts: str) -> None:
        """Wait until the messages are these."""
        self.wait_for(_SHOWN, list(texts))

    def joins(self, *texts: str) -> None:
        """Wait until the page reads a run that it found at work, and shows these. The hook gives up a join that brings
        nothing for two seconds, and a machine may be that busy: then reload, as its user would."""
        for _ in range(3):
            with suppress(AssertionError):
                self.wait_for(_STATUS, "streaming", 20.0)
                break
            self.reload()
        self.is_at("streaming")
        self.shows(*texts)

    def is_at(self, status: str) -> None:
        """Wait for a status, or for the message of an error."""
        self.wait_for(_STATUS, status)

    def send(self, text: str) -> None:
        """Write a message and send it."""
        self.call("fill", "input", text)
        self.press("Send")

    def press(self, button: str) -> None:
        """Press one of the page's own buttons."""
        self.call("click", f"text={button}")


class Thread:
    """One thread in any number of tabs, all of them in one window."""

    def __init__(self, browser: Chromium, url: str) -> None:
        self.browser, self.url, self.origin = browser, url, browser.origin
        self.id = f"thread-{uuid.uuid4().hex[:12]}"
        self._numbers = itertools.count(1)
        browser.call("browser", "newContext", name=self.id)

    def address(self, page: str, **asked: Any) -> str:
        """Return the address of one of the lane's pages, for the thread unless another is `asked` for."""
        options = json.dumps(asked.pop("props", {}))
        whole = {"url": f"{self.url}/api/chat", "thread": self.id, **asked, "props": options}
        return f"{self.origin}/{page}?{urlencode(whole)}"

    def open(self, page: str, **asked: Any) -> ChatTab:
        """Open a tab with one of the lane's pages."""
        name = f"{self.id}.{next(self._numbers)}"
        return ChatTab(self.browser, self.id, name, self.address(page, **asked))

    def tab(self, page: str = "chat", **props: Any) -> ChatTab:
        """Open the chat once more; `props` are what it forwards with each message."""
        return self.open(page, props=props)

    def runs(self, instance: Instance) -> list[dict[str, Any]]:
        """Return the records of its runs, newest first."""
        answer = instance.http.get("/api/runs", params={"threadId": self.id})
        runs: list[dict[str, Any]] = answer.raise_for_status().json()["runs"]
        return runs

    def offline(self, yes: bool) -> None:
        """Take the network away from all its tabs, or give it back."""
        self.browser.call(self.id, "setOffline", yes)

    def close(self) -> None:
        """Close the window."""
        self.browser.call(self.id, "close")
