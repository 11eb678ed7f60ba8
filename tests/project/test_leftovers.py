"""What a test started is found by its environment, wherever it went, and nothing else is."""

from __future__ import annotations

import os
import subprocess

import leftovers
from waiting import wait_until

NAME = "OUTLAST_TEST_MARK"


def test_an_orphaned_grandchild_is_found_and_ended() -> None:
    value = f"{os.getpid()}-orphan"
    program = "(setsid sh -c 'echo up; exec sleep 60' &)"  # its parent is gone when the shell returns
    with subprocess.Popen(
        ["sh", "-c", program], env={"PATH": os.defpath, NAME: value}, stdout=subprocess.PIPE, text=True
    ) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "up\n"
        (orphan,) = wait_until(lambda: leftovers.carrying(NAME, value) if shell.poll() == 0 else [], "one orphan")
        assert orphan != shell.pid
        leftovers.end(NAME, value)
    assert leftovers.carrying(NAME, value) == []


def test_another_value_names_nothing() -> None:
    assert leftovers.carrying(NAME, "nobody's") == []
