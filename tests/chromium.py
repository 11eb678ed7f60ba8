"""A real Chromium, its tabs and the pages in them, driven by `tests/node/browser.mjs` over Playwright."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lanes import CHROMIUMS
from npm_client import NpmClient, Value

PATIENCE_S = 60.0  # for what takes a fraction of a second, on a machine that has more to do


class Chromium:
    """One browser, and the server of its pages at `origin`. `close` ends both."""

    def __init__(self, scripts: Path, folder: Path, port: int, pages: Mapping[str, str]) -> None:
        self.origin = f"http://127.0.0.1:{port}"
        self._numbers = itertools.count(1)
        program = next(path for name in CHROMIUMS if (path := shutil.which(name)))
        asked = {"chromium": program, "port": port, "folder": str(folder), "pages": dict(pages)}
        self._client = NpmClient(scripts, "browser", asked)

    def wait_ready(self) -> None:
        """Return once tabs can be opened."""
        self._client.wait_for(lambda it: it.of("ready") or it.of("end"), "the browser", 2 * PATIENCE_S)
        assert self._client.of("end") == []

    def call(self, on: str, method: str, *args: Any, name: str | None = None) -> Any:
        """Return what a method of Playwright came to; what it made is called `name`. Raises AssertionError."""
        number = next(self._numbers)
        self._client.tell(number=number, on=on, method=method, args=args, **{"as": name})

        def answer(client: NpmClient) -> Value | None:
            return next((reply for reply in reversed(client.of("reply")) if reply["number"] == number), None)

        # Longer than Playwright itself waits, which says better what it waited for.
        reply = self._client.wait_for(answer, f"{on}.{method}", PATIENCE_S + 30.0) or {}
        assert "error" not in reply, reply["error"]
        return reply["value"]

    def told(self, kind: str, tab: str) -> list[Value]:
        """Return what was told of a tab: its `request`s to an instance, `error`s of scripts, lines of the `console`."""
        return [value for value in self._client.of(kind) if value["tab"] == tab]

    def close(self) -> None:
        """End it as its user would; with its processes and its profile."""
        try:
            self._client.hang_up()
            self._client.finished(PATIENCE_S)
        finally:
            self._client.close()


class Tab:
    """A tab with one page, in a window whose storage and cache it shares."""

    def __init__(self, browser: Chromium, window: str, name: str, url: str) -> None:
        self.browser, self.name = browser, name
        browser.call(window, "newPage", name=name)
        self.call("setDefaultTimeout", PATIENCE_S * 1000)
        self.call("goto", url)

    def call(self, method: str, *args: Any) -> Any:
        """Return what a method of Playwright's page came to."""
        return self.browser.call(self.name, method, *args)

    def reload(self) -> None:
        """Reload the page, as its user would."""
        self.call("reload")

    def wait_for(self, expression: str, wanted: Any, within_s: float = PATIENCE_S) -> None:
        """Return once the page's expression comes to `wanted`. Raises AssertionError with what it comes to instead."""
        same = f"JSON.stringify({expression}) === JSON.stringify({json.dumps(wanted)})"
        try:
            self.call("waitForFunction", same, None, {"polling": 20, "timeout": within_s * 1000})
        except AssertionError as error:
            seen = {what: self.call("evaluate", what) for what in (expression, "document.body.innerText")}
            raise AssertionError(f"{self.name}: not {wanted}: {seen}; {self.errors}; {error}") from None

    @property
    def errors(self) -> list[Value]:
        """Return what went wrong in its scripts, and what it said on the console as an error."""
        return self.browser.told("error", self.name) + self.browser.told("console", self.name)

    @property
    def requests(self) -> list[Value]:
        """Return what its pages asked of an instance."""
        return self.browser.told("request", self.name)
