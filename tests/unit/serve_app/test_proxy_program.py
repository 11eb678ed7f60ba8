"""HAProxy's configuration as Serve renders it, and what is changed in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ray.serve._private import haproxy_templates
from waiting import wait_until

from serve_app.proxy_program import COMES_BACK, adapted, write_program

BEFORE = """global
    stats socket /tmp/x/admin.sock mode 666 level admin expose-fd listeners
defaults
    errorfile 502 /tmp/x/500.http
    errorfile 503 /tmp/x/500.http
    errorfile 504 /tmp/x/500.http
frontend prometheus
    bind :9101
frontend http_frontend
    bind 127.0.0.1:8000
    default_backend default_backend
backend default_backend
    http-request return status 404 content-type text/plain lf-string "Path '%[path]' not found."
"""
AFTER = f"""global
    stats socket /tmp/x/admin.sock mode 600 level admin expose-fd listeners
defaults
    errorfile 502 /dev/null
    errorfile 503 /dev/null
    errorfile 504 /dev/null
frontend prometheus
    bind 127.0.0.1:9101
frontend http_frontend
{COMES_BACK}    bind 127.0.0.1:8000
    default_backend default_backend
backend default_backend
    http-request reject
"""
APPLICATION = "backend http-outlast-outlast\n    server one 127.0.0.1:30000 check\n"
STATS = ("listen stats\n  bind *:8404\n", "listen stats\n  bind 127.0.0.1:8404\n")


def test_before_the_application_is_there_a_connection_is_closed_instead_of_404() -> None:
    assert adapted(BEFORE) == AFTER


def test_a_path_outside_the_application_is_404_as_ever() -> None:
    assert "http-request return status 404" in adapted(BEFORE + APPLICATION)


def test_statistics_are_on_loopback() -> None:
    assert adapted(STATS[0]) == STATS[1]


def test_adapting_twice_changes_nothing_more() -> None:
    assert adapted(AFTER + STATS[1]) == AFTER + STATS[1]


@pytest.mark.parametrize(
    "line",
    [
        "errorfile 502 ",
        "errorfile 503 ",
        "errorfile 504 ",
        "\nfrontend http_frontend\n",
        "    bind :{{ config.metrics_port }}",
        "  bind *:{{ config.stats_port }}",
        "backend default_backend\n    http-request return status 404 ",
        " mode 666 level admin",
    ],
)
def test_serve_still_writes_what_is_replaced(line: str) -> None:
    text = Path(haproxy_templates.__file__).read_text()
    assert line in text


@pytest.fixture
def stand_in(tmp_path: Path) -> Callable[[str], list[str]]:
    """Return what makes an executable out of a shell script, behind the program that Serve starts."""

    def make(script: str) -> list[str]:
        binary = tmp_path / "binary"
        binary.write_text(f"#!/bin/sh\n{script}\n")
        binary.chmod(0o700)
        write_program(tmp_path / "a program", str(binary))
        config = tmp_path / "haproxy.cfg"
        config.write_text(BEFORE)
        return [str(tmp_path / "a program"), "-db", "-f", str(config), "-sf", "1"]

    return make


def test_the_program_becomes_the_binary_with_the_same_arguments(stand_in: Callable[[str], list[str]]) -> None:
    argv = stand_in('echo $$ "$@"; cat "$3"')
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as program:
        said, _ = program.communicate(timeout=20)
    assert said == " ".join([str(program.pid), *argv[1:]]) + "\n" + AFTER


def test_the_program_dies_with_what_started_it(stand_in: Callable[[str], list[str]], tmp_path: Path) -> None:
    argv = stand_in(f"echo $$ > {tmp_path}/pid; exec sleep 60")
    parent = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    with subprocess.Popen([sys.executable, "-c", parent, *argv]) as starter:
        pid = int(wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the program"))
        starter.send_signal(signal.SIGKILL)
    wait_until(lambda: not _alive(pid), "the program's end")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()
