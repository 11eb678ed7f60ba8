"""The agent's end of host tools: a program that speaks MCP on stdin and stdout, and hands calls on as files (a spool).

The agent starts it, in its sandbox and as its own user: `tool_server.py SPOOL` for as long as the agent's client likes,
or `tool_server.py SPOOL call NAME [ARGUMENTS]` for one call, whose result it prints. It is a file of its own, of little
more than the core of the standard library, since a container has our Python and nothing else (`container_python.py`).

A spool outlives drivers, and so does a call that waits in it; `spool.py` is the driver's end:

    <spool>/offers/<digest>     the tools of this run, named by the SHA-256 of its token; a driver's to write
    <spool>/calls/<id>          a call: one JSON object with the token; the agent's to write, by rename
    <spool>/answers/<id>        its result, for ever the same; a driver's to write, by rename

The token comes in the environment (`TOKEN`), never on a command line, which all can read. The id is made here, at
random, so no two calls have one. Once the answer is read the call is removed, and then the driver removes the answer.
"""

# ruff: noqa: PTH104, PTH108, PTH123
from __future__ import annotations

import json
import os
import select
import sys
import time
from contextlib import suppress

try:
    from _sha256 import sha256  # type: ignore[import-not-found,unused-ignore]
except ImportError:  # hashlib would bring OpenSSL along, into every container
    from hashlib import sha256

TYPE_CHECKING = False  # importing `typing` takes 3 ms; mypy takes this name for true
if TYPE_CHECKING:
    from typing import Any, NoReturn

    Json = dict[str, Any]

TOKEN = "AGENT_TOOLS_TOKEN"  # noqa: S105 - the name of it
VERSIONS = ("2025-06-18", "2025-03-26", "2024-11-05")  # of MCP; the first is offered to who asks for another
CALL_BYTES = 1 << 20
NAME_CHARACTERS = 64  # what a tool's name may have (`host_tools.py`): a longer one is none, and would go into the log
LONG_NAME = f"No tool has a name of more than {NAME_CHARACTERS} characters."
LOOK_S, LOOK_MOST_S = 0.005, 0.1  # after an answer: soon first, then less and less often
LINE_BYTES = 8 << 20
METHOD_NOT_FOUND, INVALID_PARAMS = -32601, -32602


def fault(text: str) -> Json:
    """Return the result of a call that failed."""
    return {"content": [{"type": "text", "text": text}], "isError": True}


def digest(token: str) -> str:
    """Return what a token is known by."""
    return str(sha256(token.encode(errors="replace")).hexdigest())


def write_whole(folder: str, name: str, data: bytes) -> None:
    """Write a file that is there whole or not at all. Raises OSError."""
    private = f"{folder}/.{name}.{os.urandom(6).hex()}"
    fd = os.open(private, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        with open(fd, "wb") as file:
            file.write(data)
        os.rename(private, f"{folder}/{name}")
    except OSError:
        with suppress(OSError):
            os.unlink(private)
        raise


class Spool:
    """The agent's end of the spool."""

    def __init__(self, path: str, token: str) -> None:
        self._path = path
        self._token = token
        self._looks: dict[str, tuple[float, float]] = {}  # of each call that waits: when to look, how long before that

    def tools(self) -> list[Json]:
        """Return the tools of this run, as MCP lists them. Raises OSError: the token is of no run here."""
        with open(f"{self._path}/offers/{digest(self._token)}", "rb") as file:
            tools: list[Json] = json.loads(file.read())
        return tools

    def call(self, name: str, arguments: Json) -> str:
        """Hand a call on; return its id. Raises OSError if it cannot be written, ValueError if it is too long."""
        if len(name) > NAME_CHARACTERS:
            raise ValueError(LONG_NAME)
        id = os.urandom(16).hex()
        call = {"arguments": arguments, "id": id, "token": self._token, "tool": name}
        data = json.dumps(call, separators=(",", ":")).encode()
        if len(data) > CALL_BYTES:
            raise ValueError(f"The arguments are longer than {CALL_BYTES} bytes.")
        write_whole(f"{self._path}/calls", id, data)
        self._looks[id] = (time.monotonic() + LOOK_S, LOOK_S)
        return id

    def answered(self) -> list[tuple[str, Json]]:
        """Return the calls that have an answer by now, each once."""
        now = time.monotonic()
        found: list[tuple[str, Json]] = []
        for id, (at, pause_s) in list(self._looks.items()):
            if at > now:
                continue
            longer_s = min(2 * pause_s, LOOK_MOST_S)
            self._looks[id] = (now + longer_s, longer_s)
            with suppress(FileNotFoundError), open(f"{self._path}/answers/{id}", "rb") as file:
                result: Json = json.loads(file.read())
                found.append((id, result))
                self.forget(id)
        return found

    def forget(self, id: str) -> None:
        """Have nobody wait for a call any more. What is under way goes on, and its result is nobody's."""
        self._looks.pop(id, None)
        with suppress(OSError):
            os.unlink(f"{self._path}/calls/{id}")

    def pause_s(self) -> float | None:
        """Return how long until it is time to look; None if nothing is waited for."""
        return max(0.0, min(at for at, _ in self._looks.values()) - time.monotonic()) if self._looks else None


class Server:
    """MCP on stdin and stdout, as far as tools go."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._calls: dict[str, Any] = {}  # of each call that waits: the request to answer
        self._heard = b""

    def serve(self) -> None:
        """Answer until stdin ends. A call that waits then is nobody's any more."""
        while True:
            ready, _, _ = select.select([0], [], [], self._spool.pause_s())
            if ready:
                data = os.read(0, 1 << 16)
                if not data:
                    break
                self._hear(data)
            for id, result in self._spool.answered():
                self._say(self._calls.pop(id), result=result)
        for id in self._calls:
            self._spool.forget(id)

    def _hear(self, data: bytes) -> None:
        *lines, self._heard = (self._heard + data).split(b"\n")
        if len(self._heard) > LINE_BYTES:
            raise ValueError("a message without end")
        for line in lines:
            with suppress(ValueError):
                message = json.loads(line)
                for one in message if isinstance(message, list) else [message]:  # a batch: older clients send some
                    if isinstance(one, dict) and isinstance(one.get("method"), str):
                        self._take(one)

    def _take(self, message: Json) -> None:
        params = message.get("params")
        params = params if isinstance(params, dict) else {}
        method, id = message["method"], message.get("id")
        if id is None:
            if method == "notifications/cancelled":
                self._cancel(params.get("requestId"))
        elif method == "initialize":
            self._say(id, result=self._hello(params))
        elif method == "ping":
            self._say(id, result={})
        elif method == "tools/list":
            self._list(id)
        elif method == "tools/call":
            self._call(id, params)
        else:
            self._say(id, error={"code": METHOD_NOT_FOUND, "message": f"There is no {method} here."})

    def _hello(self, params: Json) -> Json:
        asked = params.get("protocolVersion")
        return {
            "protocolVersion": asked if asked in VERSIONS else VERSIONS[0],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "outlast", "version": "1"},
        }

    def _list(self, id: Any) -> None:
        try:
            self._say(id, result={"tools": self._spool.tools()})
        except OSError:
            self._say(id, error={"code": INVALID_PARAMS, "message": f"{TOKEN} is of no run here."})

    def _call(self, id: Any, params: Json) -> None:
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str) or not isinstance(arguments, dict | None):
            self._say(id, error={"code": INVALID_PARAMS, "message": "A call has a name, and arguments in an object."})
            return
        try:
            self._calls[self._spool.call(name, arguments or {})] = id
        except (OSError, ValueError) as error:
            self._say(id, result=fault(f"The call could not be handed on: {error}"))

    def _cancel(self, request: Any) -> None:
        for call, id in list(self._calls.items()):
            if id == request:
                del self._calls[call]
                self._spool.forget(call)

    def _say(self, id: Any, **answer: Any) -> None:
        left = memoryview(json.dumps({"jsonrpc": "2.0", "id": id, **answer}).encode() + b"\n")
        while left:
            left = left[os.write(1, left) :]


def call_once(spool: Spool, name: str, arguments: str) -> int:
    """Make one call, and print what it comes to; return 1 if that is a failure."""
    try:
        given = json.loads(arguments)
        if not isinstance(given, dict):
            raise ValueError("The arguments are to be a JSON object.")  # noqa: TRY004 - as what json raises
        id = spool.call(name, given)
        while not (answers := spool.answered()):
            time.sleep(spool.pause_s() or 0.0)
        ((_, result),) = [answer for answer in answers if answer[0] == id]
    except (OSError, ValueError) as error:
        result = fault(f"The call could not be handed on: {error}")
    text = "".join(part.get("text", "") for part in result["content"])
    failed = bool(result.get("isError"))
    out = sys.stderr if failed else sys.stdout
    out.write(text + "\n")
    return int(failed)


def main() -> NoReturn:
    """Serve, or make the one call that the command line names."""
    spool = Spool(sys.argv[1], os.environ.get(TOKEN, ""))
    if sys.argv[2:3] == ["call"] and len(sys.argv) in (4, 5):
        sys.exit(call_once(spool, sys.argv[3], (sys.argv[4:] or ["{}"])[0]))
    with suppress(BrokenPipeError):
        Server(spool).serve()
    sys.exit(0)


if __name__ == "__main__":
    main()
