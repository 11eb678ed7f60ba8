"""A script of tests/node/ as a process: what it says, line by line, while it runs."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from waiting import wait_until

T = TypeVar("T")
Value = dict[str, Any]


class Said(NamedTuple):
    """One thing that a script said."""

    kind: str
    value: Any


class NpmClient:
    """A running script, told with `asked` what to do. `close` ends it, whatever it does."""

    def __init__(self, folder: Path, script: str, asked: Value) -> None:
        self.name = script
        self.asked = asked
        self.said: list[Said] = []
        self._child = subprocess.Popen(
            ["node", str(folder / f"{script}.mjs"), json.dumps(asked)],
            env={"PATH": os.environ["PATH"], "NODE_NO_WARNINGS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._errors = b""
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self.said.append(Said(**json.loads(line)))

    def _read_errors(self) -> None:
        assert self._child.stderr is not None
        self._errors = self._child.stderr.read()

    # --- what it said ---

    def of(self, kind: str) -> list[Any]:
        """Return every value of one kind so far."""
        return [said.value for said in list(self.said) if said.kind == kind]

    @property
    def chunks(self) -> list[Value]:
        """Return the chunks that its library handed out."""
        return self.of("chunk")

    @property
    def types(self) -> list[str]:
        """Return the types of those chunks."""
        return [chunk["type"] for chunk in self.chunks]

    @property
    def text(self) -> str:
        """Return all text of those chunks."""
        return "".join(chunk["delta"] for chunk in self.chunks if chunk["type"] == "TEXT_MESSAGE_CONTENT")

    @property
    def requests(self) -> list[Value]:
        """Return what it asked of the server."""
        return self.of("request")

    @property
    def resumed_from(self) -> list[str]:
        """Return the `Last-Event-ID` of every request that has one."""
        headers = [{name.lower(): value for name, value in asked["headers"].items()} for asked in self.requests]
        return [header["last-event-id"] for header in headers if "last-event-id" in header]

    # --- waiting ---

    def wait_for(self, condition: Callable[[NpmClient], T], what: str, within_s: float = 20.0) -> T:
        """Return the first truthy value of `condition`. Raises TimeoutError, with the last things it said."""
        try:
            return wait_until(lambda: condition(self), f"{self.name}: {what}", within_s)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\nlast said: {self.said[-5:]}\n{self._errors.decode()}") from None

    def ended(self, within_s: float = 20.0) -> Value:
        """Return what its call came to, `{value, error}`, once the process has ended."""
        self.wait_for(lambda _: self._child.poll() is not None, "its end", within_s)
        for reader in self._readers:
            reader.join(5.0)
        ends: list[Value] = self.of("end")
        assert len(ends) == 1, f"{self.name} ended with {self._child.returncode}: {self._errors.decode()}"
        return ends[0]

    def finished(self, within_s: float = 20.0) -> NpmClient:
        """Return this client once its call has ended without an error."""
        end = self.ended(within_s)
        assert end["error"] is None, f"{self.asked}: {end['error']}; said before: {self.said[-8:]}"
        return self

    def tell(self, **order: Any) -> None:
        """Send one order to a script that takes them."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(order).encode() + b"\n")
        self._child.stdin.flush()

    def hang_up(self) -> None:
        """Tell a script that takes orders that no more will come."""
        assert self._child.stdin is not None
        self._child.stdin.close()

    def close(self) -> None:
        """End the process as a closed tab would."""
        self._child.kill()
        self._child.wait()
        for reader in self._readers:
            reader.join(5.0)
        for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
            assert pipe is not None
            pipe.close()


class StartScript(Protocol):
    """Starts a script by its name, and ends it with the test."""

    def __call__(self, script: str, /, **asked: Any) -> NpmClient: ...
