"""What a killed `serve` left is found by what it has open, whatever its title and its environment say."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serve_app.leftovers import end_leftovers


@contextmanager
def titled(title: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that calls itself so, with `log` open and nothing in its environment."""
    with log.open("wb") as output:
        process = subprocess.Popen([title, "60"], executable="/bin/sleep", env={}, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_helper_of_ray_is_ended_by_the_log_that_it_writes(tmp_path: Path) -> None:
    ours, others = tmp_path / "ours", tmp_path / "ours-too"
    ours.mkdir()
    others.mkdir()
    with (
        titled("ray::DashboardAgent", ours / "agent.err") as helper,
        titled("ray::DashboardAgent", others / "agent.err") as stranger,
        titled("recorder", ours / "other.err") as agent,
    ):
        assert end_leftovers([ours]) == 1
        assert helper.wait(10) < 0
        assert (stranger.poll(), agent.poll()) == (None, None)
