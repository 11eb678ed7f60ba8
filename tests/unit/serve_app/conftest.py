"""What tests of the command line get: the program, and an instance that is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_program import Outlast
from fake_instance import FakeInstance


@pytest.fixture
def outlast(tmp_path: Path) -> Iterator[Outlast]:
    program = Outlast(tmp_path)
    yield program
    program.close()


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeInstance]:
    instance = FakeInstance(tmp_path)
    instance.up()
    yield instance
    instance.down()
