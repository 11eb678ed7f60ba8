"""`make test` runs on the package as a user gets it, not on the checkout."""

from __future__ import annotations

import importlib.metadata
import os
import sysconfig
from pathlib import Path

import pytest

import actors
import runtime
import serve_app

pytestmark = pytest.mark.skipif(
    os.environ.get("TEST_INSTALLED") != "1", reason="by hand the checkout is imported; `make test` sets TEST_INSTALLED"
)


@pytest.mark.parametrize("package", [runtime, actors, serve_app], ids=lambda package: package.__name__)
def test_the_tests_import_the_installed_package(package: object) -> None:
    place = Path(str(getattr(package, "__file__", None)))
    assert place.is_relative_to(sysconfig.get_path("purelib"))


def test_the_three_packages_come_from_outlast() -> None:
    owners = importlib.metadata.packages_distributions()
    assert {name: set(owners[name]) for name in ("runtime", "actors", "serve_app")} == {
        "runtime": {"outlast"},
        "actors": {"outlast"},
        "serve_app": {"outlast"},
    }


def test_the_package_is_byte_compiled() -> None:
    cached = Path(runtime.__file__).parent / "__pycache__"
    assert list(cached.glob("ports.*.pyc")), "a run actor that must compile first starts 0.8 s later"
