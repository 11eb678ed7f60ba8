"""A client of one run that does what a browser's EventSource does: it reconnects with the last id that it has seen.

It shares no code with the gateway or our own client, keeps everything that came, and forgives nothing: an answer that
is not 200 makes it give up, as TanStack's client and a native EventSource do.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Protocol, Self

import httpx
from shell_runs import body
from waiting import wait_until


class Served(Protocol):
    """What is watched: an `outlast serve`, wherever it runs."""

    @property
    def url(self) -> str: ...

    def enter_network(self) -> None:
        """Let the calling OS thread reach it."""


TERMINAL = ("RUN_FINISHED", "RUN_ERROR")
RETRY_S = 0.1
SILENCE_S = 8.0  # of a stream, heartbeats included, before a client takes it for dead


class Watch:
    """Watches one run in an OS thread of its own, over as many responses as it takes; a context manager."""

    def __init__(
        self,
        instance: Served,
        run_id: str,
        script: str | None = None,
        thread_id: str | None = None,
        **forwarded: Any,
    ) -> None:
        """With `script` the first request is the POST that starts the run, else a GET from the start."""
        self.run_id = run_id
        self.ids: list[str] = []
        self.events: list[dict[str, Any]] = []
        self.responses = 0
        self.cuts = 0  # responses that ended in mid-body, without a final chunk
        self.heartbeats = 0
        self.refusal: tuple[int, str] | None = None
        self._instance = instance
        self._body = None if script is None else body(run_id, script, thread_id, **forwarded)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"watch {run_id}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._thread.join(SILENCE_S + 2)

    # --- what came ---

    @property
    def lines(self) -> list[str]:
        """Return the agent's lines."""
        events = list(self.events)
        return "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT").splitlines()

    @property
    def terminal(self) -> dict[str, Any] | None:
        """Return the terminal event, or None before it came."""
        last = self.events[-1] if self.events else None
        return last if last is not None and last["type"] in TERMINAL else None

    def until_lines(self, count: int, within_s: float = 20.0) -> None:
        """Wait for `count` lines in all."""
        wait_until(lambda: self._failed() or len(self.lines) >= count, f"{count} lines of {self.run_id}", within_s)
        assert self.refusal is None, self.refusal

    def until_end(self, within_s: float = 20.0) -> dict[str, Any]:
        """Wait for the terminal event and return it."""
        wait_until(lambda: self._failed() or self.terminal, f"the end of {self.run_id}", within_s)
        assert self.refusal is None, self.refusal
        assert self.terminal is not None
        return self.terminal

    def _failed(self) -> bool:
        return self.refusal is not None

    # --- the OS thread ---

    def _watch(self) -> None:
        limits = httpx.Limits(max_keepalive_connections=0)
        timeout = httpx.Timeout(5.0, read=SILENCE_S)
        with httpx.Client(timeout=timeout, trust_env=False, limits=limits) as client:
            while not self._closed.is_set() and self.terminal is None and self.refusal is None:
                self._instance.enter_network()
                method, url, options = self._request()
                try:
                    with client.stream(method, url, **options) as response:
                        self._read(response)
                except (httpx.RemoteProtocolError, httpx.ReadError):
                    self.cuts += 1
                    self._closed.wait(RETRY_S)
                except httpx.TransportError:
                    self._closed.wait(RETRY_S)

    def _request(self) -> tuple[str, str, dict[str, Any]]:
        url = f"{self._instance.url}/api/chat"
        if self._body is not None and not self.ids:
            return "POST", url, {"json": self._body, "headers": {"X-Run-Id": self.run_id}}
        headers = {"Accept": "text/event-stream"}
        if self.ids:
            headers["Last-Event-ID"] = self.ids[-1]
        return "GET", url, {"params": {"runId": self.run_id, "offset": "-1"}, "headers": headers}

    def _read(self, response: httpx.Response) -> None:
        if response.status_code != httpx.codes.OK:
            self.refusal = (response.status_code, response.read().decode(errors="replace"))
            return
        self.responses += 1
        for id, data in self._frames(response):
            self.ids.append(id)
            self.events.append(json.loads(data))
            if self._closed.is_set():
                return
        if self.terminal is None and not self._closed.is_set():
            self.refusal = (response.status_code, "a clean end without a terminal event")

    def _frames(self, response: httpx.Response) -> Iterator[tuple[str, str]]:
        id, data = "", ""
        for line in _lines(response):
            if self._closed.is_set():
                return
            if line.startswith("id: "):
                id = line[4:]
            elif line.startswith("data: "):
                data = line[6:]
            elif line.startswith(":"):
                self.heartbeats += 1
            elif not line and data:
                yield id, data
                data = ""


def _lines(response: httpx.Response) -> Iterator[str]:
    """Yield the lines as they come. A line ends at a newline and nowhere else: `iter_lines` splits at U+2028 too."""
    rest = b""
    for piece in response.iter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.decode()


def check_whole(watch: Watch, count: int) -> None:
    """Check that lines 1 to `count` came once each, in order, under ids without a gap (I3)."""
    assert watch.lines == [str(number) for number in range(1, count + 1)]
    positions = [int(id.partition("_")[2]) for id in watch.ids]
    assert positions == list(range(1, len(positions) + 1))
