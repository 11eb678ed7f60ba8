"""What the docker provider makes of an engine's answers: only a container's own absence is its loss (P17), no run that
was launched ends of a full disk, and nothing loops for ever. The engine is a few answers over HTTP."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from runtime.core.result import Form, ResultAsk
from runtime.errors import JournalUnavailable, LaunchFailed, SandboxLost, SandboxUnreachable, WorkspaceHeld
from runtime.sandboxes import container_engine, docker
from runtime.sandboxes.container import DockerSandbox
from runtime.sandboxes.container_engine import Engine
from runtime.sandboxes.docker import DockerProvider
from runtime.sandboxes.docker_results import DockerResults
from runtime.sandboxes.hardening import Limits

STOPPED = {"Id": "c1", "Name": "/c1", "State": {"Status": "exited", "ExitCode": 0}, "Config": {"Labels": {}}}
CREATED = {**STOPPED, "State": {"Status": "created", "ExitCode": 0}}
LISTED = {"Id": "c1", "Names": ["/c1"], "State": "exited", "Labels": None}
INFO = {"ID": "engine-1", "NCPU": 2, "Architecture": "x86_64"}
FULL = (500, {"message": "write /var/lib/docker/x: no space left on device"})
ABSENT = (404, {"message": "No such container: c1"})
NOT_RUNNING = (409, {"message": "container c1 is not running"})


class FakeEngine:
    """Answers what it was told to; `asked`: what came."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self._answers: list[tuple[str, tuple[int, Any]]] = []
        self.answer("GET /version", 200, {"ApiVersion": "1.43"})
        self.answer("GET /info", 200, INFO)
        self.answer("GET /volumes/", 200, {"Name": "python"})
        self.answer("DELETE /volumes/", 204, None)
        self.answer("GET /containers/json", 200, [LISTED])
        self.answer("GET /containers/[^/]+/json", 200, STOPPED)
        self.answer("POST /containers/[^/]+/exec", *NOT_RUNNING)
        self.answer("POST /containers/create", 201, {"Id": "c1"})
        self.answer("PUT /containers/[^/]+/archive", 200, None)
        self.answer("POST /containers/[^/]+/start", 204, None)
        self.answer("DELETE /containers/", 204, None)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.address = f"tcp://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, what: str, status: int, body: Any) -> None:
        """From now on answer so to what is asked by this method and path."""
        self._answers.insert(0, (what, (status, body)))

    def bodies(self, what: str) -> list[Any]:
        """Return what came with each such request."""
        return [body for method, path, body in self.asked if re.match(what, f"{method} {path}")]

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        def answer(request: BaseHTTPRequestHandler) -> None:
            size = int(request.headers.get("Content-Length") or 0)
            said = request.rfile.read(size)
            is_json = "json" in (request.headers.get("Content-Type") or "")
            path = re.sub(r"^/v[\d.]+/", "/", request.path)
            self.asked.append((request.command, path, json.loads(said) if is_json and said else None))
            asked = f"{request.command} {path}"
            status, body = next(answer for what, answer in self._answers if re.match(what, asked))
            data = b"" if body is None else json.dumps(body).encode()
            request.send_response(status)
            request.send_header("Content-Type", "application/json")
            if status != 204:
                request.send_header("Content-Length", str(len(data)))
            request.end_headers()
            request.wfile.write(data)

        members = {f"do_{method}": answer for method in ("GET", "POST", "PUT", "DELETE")}
        return type("Handler", (BaseHTTPRequestHandler,), {**members, "log_message": lambda *_: None})


@pytest.fixture
def fake() -> Iterator[FakeEngine]:
    """Yield an engine with one stopped container."""
    fake = FakeEngine()
    yield fake
    fake.close()


@pytest.fixture
def provider(fake: FakeEngine) -> DockerProvider:
    """Return a provider on it."""
    return DockerProvider("test", "image", Limits(), fake.address)


async def sandbox_of(provider: DockerProvider) -> DockerSandbox:
    """Return the sandbox that is there."""
    sandbox = await provider.resume(provider.key("run-1"))
    assert sandbox is not None
    return sandbox


async def test_a_network_that_is_gone_is_no_lost_container(fake: FakeEngine, provider: DockerProvider) -> None:
    fake.answer("POST /containers/[^/]+/start", 404, {"message": "network n1 not found"})
    with pytest.raises(SandboxUnreachable, match="network n1 not found"):
        await (await sandbox_of(provider)).launched()


async def test_a_container_that_its_own_engine_does_not_know_is_lost(
    fake: FakeEngine, provider: DockerProvider
) -> None:
    sandbox = await sandbox_of(provider)
    fake.answer("GET /containers/[^/]+/json", *ABSENT)
    with pytest.raises(SandboxLost):
        await sandbox.launched()
    fake.answer("GET /info", 200, {**INFO, "ID": "engine-2"})
    with pytest.raises(SandboxUnreachable, match="not of this engine"):
        await sandbox.launched()


async def test_a_full_disk_ends_no_run_that_may_have_been_launched(fake: FakeEngine, provider: DockerProvider) -> None:
    sandbox = await sandbox_of(provider)
    fake.answer("POST /containers/[^/]+/start", *FULL)
    with pytest.raises(SandboxUnreachable, match="disk is full"):
        await sandbox.launched()
    with pytest.raises(SandboxUnreachable, match="disk is full"):
        await anext(sandbox.follow(0))
    fake.answer("GET /containers/[^/]+/json", 200, {**STOPPED, "State": {"Status": "exited", "ExitCode": 127}})
    fake.answer("GET /info", 200, {**INFO, "Architecture": "other"})
    with pytest.raises(SandboxUnreachable, match="of the same architecture"):  # our program cannot be stored again
        await (await sandbox_of(DockerProvider("test", "image", Limits(), fake.address))).launched()


@pytest.mark.parametrize(
    "call", ["POST /containers/create", "PUT /containers/[^/]+/archive", "POST /containers/[^/]+/start"]
)
async def test_a_run_that_finds_a_full_disk_at_its_beginning_says_so(
    fake: FakeEngine, provider: DockerProvider, call: str
) -> None:
    fake.answer("GET /containers/json", 200, [])
    fake.answer("GET /containers/[^/]+/json", 200, CREATED)
    fake.answer(call, *FULL)
    with pytest.raises(LaunchFailed, match="disk is full"):
        await provider.create(provider.key("run-1"), "thread-1")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("holder", [ABSENT, (200, STOPPED)])
async def test_a_name_that_stays_taken_is_not_waited_for_for_ever(
    fake: FakeEngine, provider: DockerProvider, monkeypatch: pytest.MonkeyPatch, holder: tuple[int, Any]
) -> None:
    monkeypatch.setattr(docker, "HELD_PATIENCE_S", 0.0)
    fake.answer("GET /containers/json", 200, [])
    fake.answer("POST /containers/create", 409, {"message": "the name is already in use"})
    fake.answer("GET /containers/[^/]+/json", *holder)
    with pytest.raises(WorkspaceHeld):
        await provider.create(provider.key("run-1"), "thread-1")


async def test_a_container_gets_no_proxies_of_ours_and_its_image_has_no_say_in_roots_loader(
    fake: FakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    proxy = "http://user:password@proxy.invalid"
    (tmp_path / "config.json").write_text(json.dumps({"proxies": {"default": {"httpProxy": proxy}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    provider = DockerProvider("test", "image", Limits(), fake.address)
    fake.answer("GET /containers/json", 200, [])
    fake.answer("GET /containers/[^/]+/json", 200, CREATED)
    sandbox = await provider.create(provider.key("run-1"), "thread-1")
    fake.answer("GET /containers/[^/]+/json", 200, STOPPED)
    with pytest.raises(SandboxUnreachable):
        await sandbox.launched()
    unsaid = ["GLIBC_TUNABLES=", "LD_AUDIT=", "LD_LIBRARY_PATH=", "LD_PRELOAD="]
    bodies = [*fake.bodies("POST /containers/create"), *fake.bodies("POST /containers/[^/]+/exec")]
    assert len(bodies) >= 2
    assert [sorted(body["Env"]) for body in bodies] == [unsaid] * len(bodies)


def test_a_container_that_is_just_removed_has_no_name_and_is_listed(fake: FakeEngine) -> None:
    fake.answer("GET /containers/json", 200, [{**LISTED, "Names": None}, {**LISTED, "Names": []}])
    assert [found.name for found in Engine(fake.address).find("label")] == ["c1", "c1"]


async def test_who_may_not_use_the_engine_is_told_so_and_loses_no_run(
    fake: FakeEngine, provider: DockerProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await sandbox_of(provider)
    monkeypatch.setattr(container_engine, "_knock", lambda _: PermissionError())
    with pytest.raises(SandboxUnreachable, match="may not use"):
        await sandbox.launched()
    other = DockerProvider("test", "image", Limits(), fake.address)
    with pytest.raises(SandboxUnreachable, match="may not use"):
        other.key("run-1")
    monkeypatch.setattr(docker, "ABSENT_PATIENCE_S", 0.0)
    with pytest.raises(LaunchFailed, match="may not use"):
        other.key("run-1")
    assert await other.list() == []


class Complaining(Engine):
    """An engine in whose containers nothing can be done."""

    def attach(self, *_: Any) -> Any:
        """Return a connection to an attendant that has answered already."""
        ours, self.theirs = socket.socketpair()
        said = json.dumps({"error": "[Errno 5] Input/output error", "bytes": 0}).encode() + b"\n"
        self.theirs.sendall(b"\1\0\0\0" + len(said).to_bytes(4, "big") + said)
        return ours


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda sandbox: sandbox.launched(), SandboxUnreachable),
        (lambda sandbox: sandbox.exit(), SandboxUnreachable),
        (lambda sandbox: sandbox.kill(), SandboxUnreachable),
        (lambda sandbox: sandbox.journal_id(), SandboxUnreachable),
        (lambda sandbox: sandbox.read_journal(0, 1), JournalUnavailable),
    ],
)
async def test_what_an_attendant_cannot_do_is_said(ask: Callable[[DockerSandbox], Any], error: type[Exception]) -> None:
    engine = Complaining("unix:///nowhere")
    sandbox = DockerSandbox(engine, "key", "c1", lambda *_: None)
    with pytest.raises(error, match="Input/output error"):
        await ask(sandbox)
    for line in sandbox._idle:
        line.close()
    engine.theirs.close()


async def test_what_reads_a_result_is_bounded_and_does_not_outlive_whoever_asks(
    fake: FakeEngine, provider: DockerProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = ResultAsk(
        provider="docker", key=provider.key("run-1"), thread_key="t", run_id="run-1", form=Form.FILES, max_bytes=1
    )
    begin, begun, go = provider._read_in, threading.Event(), threading.Event()
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(Engine, "attach", lambda *_: ours)

    def slowly(*args: Any) -> tuple[Any, Callable[[], None]]:
        begun.set()
        assert go.wait(30)
        return begin(*args)

    monkeypatch.setattr(provider, "_read_in", slowly)
    with ours, theirs:
        reading = asyncio.ensure_future(anext(DockerResults(provider).read_result(ask)))
        await until(begun.is_set, "the beginning of it")
        reading.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await reading
    (made,) = fake.bodies("POST /containers/create")
    assert made["HostConfig"]["NanoCpus"] == 10**9
    assert len(fake.bodies("DELETE /containers/c1")) == 1
