"""A workspace that begins with a repository, and what git has of us when it gets one: nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from new_workspaces import fill, git, refused

from runtime.core.workspace import SourceKind, WorkspaceSource
from runtime.errors import LaunchFailed
from runtime.sandboxes import cloning, filling
from runtime.sandboxes.filling import make_workspace


@pytest.fixture
def repository(sources: Path) -> Path:
    made = sources / "repo"
    made.mkdir()
    git("init", "--quiet", "--initial-branch=main", cwd=made)
    for branch, text in (("main", "first"), ("feature/x", "second")):
        git("checkout", "--quiet", "-B", branch, cwd=made)
        (made / "file").write_text(text)
        git("add", "file", cwd=made)
        git("commit", "--quiet", "-m", text, cwd=made)
    git("checkout", "--quiet", "main", cwd=made)
    return made


@pytest.mark.parametrize(("ref", "text"), [(None, "first"), ("main", "first"), ("feature/x", "second")])
def test_a_repository_is_cloned(sources: Path, repository: Path, ref: str | None, text: str) -> None:
    made = fill(sources, "git", "repo", ref)
    assert (made / "file").read_text() == text
    git("log", cwd=made)


def test_a_ref_that_is_not_there_is_refused_in_gits_words(sources: Path, repository: Path) -> None:
    with pytest.raises(LaunchFailed, match=r"git could not get the workspace: .*nowhere"):
        fill(sources, "git", "repo", "nowhere")


@contextmanager
def web_server() -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """Serve on this machine: what is below /moved is elsewhere, all else wants a password. Yields the URL and what was
    asked for, by path and Authorization."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Authorization"]))
            moved = self.path.startswith("/moved")
            self.send_response(302 if moved else 401)
            self.send_header("Location", self.path.replace("moved", "secret"))
            self.send_header("WWW-Authenticate", 'Basic realm="team"')
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def clone_url(sources: Path, url: str) -> None:
    place = sources.parent / "workspaces" / "thread"
    make_workspace(place, WorkspaceSource(kind=SourceKind.GIT, place=url), [url])


def test_git_has_no_password_of_ours_and_goes_nowhere_else(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(sources))
    (sources / ".netrc").write_text("machine 127.0.0.1 login operator password secret\n")
    with web_server() as (url, asked):
        for name in ("team", "moved"):
            with pytest.raises(LaunchFailed, match="git could not get"):
                clone_url(sources, f"{url}/{name}/x.git")
    assert asked == [(f"/{name}/x.git/info/refs?service=git-upload-pack", None) for name in ("team", "moved")]


def program(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    """Put a shell script before all other programs."""
    folder.mkdir()
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_git_has_no_ssh_key_of_ours(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/tmp/agent")
    noted = sources / "noted"
    program(sources / "bin", monkeypatch, "ssh", f'echo "$@ [$SSH_AUTH_SOCK] in $HOME" > {noted}; exit 1')
    with pytest.raises(LaunchFailed, match="git could not get"):
        clone_url(sources, "ssh://git@host.invalid/team/x.git")
    said = noted.read_text()
    assert "-F /dev/null" in said
    assert "-o BatchMode=yes" in said
    assert "-o PubkeyAuthentication=no" in said
    assert f"[] in {sources.parent}/workspaces/thread_new" in said  # removed with all else that is unfinished


def test_what_git_writes_is_counted_while_it_writes(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "MAX_BYTES", 1000)
    monkeypatch.setattr(cloning, "LOOK_S", 0.05)
    (sources / "repo").mkdir()
    script = f'for last; do :; done; echo $$ > {sources}/pid; head -c 2000 /dev/zero > "$last/pack"; exec sleep 300'
    program(sources / "bin", monkeypatch, "git", script)
    refused(sources, "git", "repo", "is over 1000 bytes")
    with pytest.raises(ProcessLookupError):
        os.kill(int((sources / "pid").read_text()), 0)


def test_a_git_that_does_not_come_to_an_end_is_ended(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloning, "GIT_S", 0.2)
    monkeypatch.setattr(cloning, "LOOK_S", 0.05)
    (sources / "repo").mkdir()
    program(sources / "bin", monkeypatch, "git", "sleep 300")  # its child has its stderr too
    refused(sources, "git", "repo", "git did not get the workspace")
