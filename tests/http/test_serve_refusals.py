"""`serve` that cannot serve: one line that says what to do, an exit code, and nothing half-made or left running."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import leftovers
import pytest
from instance import OUTLAST, Instance

NO_INSTANCE, USAGE, REFUSED = 5, 2, 6


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Instance]:
    """Yield an instance that is not started, and leave nothing of it."""
    other = Instance(tmp_path)
    yield other
    assert other.processes() == []
    other.close()


def refusal(instance: Instance, code: int, **env: str) -> str:
    """Run `outlast serve` to its end; check its exit code and the form of what it says, and return that."""
    ended = subprocess.run(
        [OUTLAST, "serve"],
        cwd="/",
        env={**instance.env, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    said = ended.stderr.strip()
    assert ended.returncode == code, said
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("outlast: ")
    assert not (instance.data_dir / "instance.json").exists() or env.get("OUTLAST_PORT")
    return said


def test_a_port_in_use_is_named_with_the_setting_that_changes_it(instance: Instance, other: Instance) -> None:
    said = refusal(other, NO_INSTANCE, OUTLAST_PORT=str(instance.port))
    assert str(instance.port) in said
    assert "OUTLAST_PORT" in said
    assert not other.data_dir.exists()
    assert instance.ready


def test_a_data_directory_in_use_names_who_uses_it(instance: Instance, other: Instance) -> None:
    said = refusal(instance, NO_INSTANCE, OUTLAST_PORT=str(other.port))
    assert instance.url in said
    assert str(instance.info.pid) in said
    assert instance.ready


def test_hooks_and_webhooks_that_cannot_be_told_are_named(other: Instance, tmp_path: Path) -> None:
    said = refusal(other, USAGE, OUTLAST_HOOKS="no_such_module:Hooks")
    assert "OUTLAST_HOOKS: 'no_such_module:Hooks' cannot be loaded" in said
    said = refusal(other, USAGE, OUTLAST_WEBHOOKS_FILE=str(tmp_path / "missing"))
    assert "OUTLAST_WEBHOOKS_FILE" in said
    assert not other.data_dir.exists()


def test_a_store_of_a_newer_schema_is_left_alone(other: Instance) -> None:
    refusal_of_unreachable_ray(other)  # makes the store, and gets no further
    path = other.data_dir / "outlast.sqlite"
    with sqlite3.connect(path) as store:
        store.execute("UPDATE meta SET schema_version = schema_version + 1")
    store.close()
    said = refusal(other, REFUSED)
    assert "schema" in said
    assert "newer" in said


def test_a_store_of_another_deployment_is_left_alone(other: Instance) -> None:
    refusal_of_unreachable_ray(other)
    (other.data_dir / "deployment").write_text("0123456789abcdef\n")
    assert "0123456789abcdef" in refusal(other, REFUSED)


def test_a_lost_store_is_not_replaced_by_an_empty_one(other: Instance) -> None:
    refusal_of_unreachable_ray(other)
    for path in other.data_dir.glob("outlast.sqlite*"):
        path.unlink()
    assert "backup" in refusal(other, REFUSED)
    assert not list(other.data_dir.glob("outlast.sqlite"))


@pytest.mark.parametrize("foreign", ["sqlite", "text"])
def test_a_file_of_something_else_is_left_alone(other: Instance, foreign: str) -> None:
    other.data_dir.mkdir()
    path = other.data_dir / "outlast.sqlite"
    if foreign == "sqlite":
        store = sqlite3.connect(path)
        store.execute("CREATE TABLE theirs (x)")
        store.close()
    else:
        path.write_text("dear diary\n" * 200)
    before = path.read_bytes()
    refusal(other, REFUSED)
    assert path.read_bytes() == before


def refusal_of_unreachable_ray(other: Instance) -> str:
    return refusal(other, NO_INSTANCE, OUTLAST_RAY_ADDRESS="127.0.0.1:1")


def test_a_ray_that_does_not_answer_is_said_at_once(other: Instance) -> None:
    assert "127.0.0.1:1" in refusal_of_unreachable_ray(other)


def test_an_unknown_setting_is_refused_with_the_nearest_name(other: Instance) -> None:
    assert "OUTLAST_LEASE_TTL_S" in refusal(other, USAGE, OUTLAST_LEASE_TTL="3")
    assert not other.data_dir.exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OUTLAST_HOST", "0.0.0.0"),
        ("OUTLAST_STORE", "postgresql"),
        ("OUTLAST_SHARDS", "2"),
        ("OUTLAST_LEASE_TTL_S", "0"),
        ("OUTLAST_LEASE_TTL_S", "soon"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_before_anything_is_made(other: Instance, name: str, value: str) -> None:
    assert name.removeprefix("OUTLAST_").lower() in refusal(other, USAGE, **{name: value}).lower()
    assert not other.data_dir.exists()


def test_a_data_directory_that_cannot_be_made_is_named(other: Instance, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    blocked = str(tmp_path / "file" / "data")
    assert blocked in refusal(other, NO_INSTANCE, OUTLAST_DATA_DIR=blocked)
    assert leftovers.carrying("OUTLAST_DATA_DIR", blocked) == []
