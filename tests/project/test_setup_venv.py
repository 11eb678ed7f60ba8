"""Set-up knows when there is something to do, and two at once wait for each other."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import package_sources
import pytest
import setup_venv

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for path in ("pyproject.toml", "README.md", "runtime/a.py", "runtime/core/b.py", "actors/c.py", "serve_app/d.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    return tmp_path


def test_the_digest_follows_content_names_and_deletions(checkout: Path) -> None:
    seen = {package_sources.digest(checkout)}
    (checkout / "runtime" / "a.py").write_text("changed")
    seen.add(package_sources.digest(checkout))
    (checkout / "runtime" / "a.py").rename(checkout / "runtime" / "z.py")
    seen.add(package_sources.digest(checkout))
    (checkout / "runtime" / "core" / "b.py").unlink()
    seen.add(package_sources.digest(checkout))
    assert len(seen) == 4


def test_the_digest_ignores_what_is_not_the_package(checkout: Path) -> None:
    before = package_sources.digest(checkout)
    for path in ("tests/test_x.py", "runtime/__pycache__/a.pyc", "build/lib/runtime/old.py"):
        (checkout / path).parent.mkdir(parents=True, exist_ok=True)
        (checkout / path).write_text("x")
    assert package_sources.digest(checkout) == before


def test_the_copy_holds_what_was_hashed(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    target = tmp_path_factory.mktemp("copy")
    package_sources.copy(checkout, target)
    assert package_sources.digest(target) == package_sources.digest(checkout)


def test_a_step_that_was_interrupted_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "stamp.json"
    with setup_venv.Stamp(path).step("package", "one"):
        pass
    assert setup_venv.Stamp(path).has("package", "one")
    with pytest.raises(KeyboardInterrupt), setup_venv.Stamp(path).step("package", "two"):
        raise KeyboardInterrupt
    stamp = setup_venv.Stamp(path)
    assert not stamp.has("package", "one")
    assert not stamp.has("package", "two")


@pytest.mark.parametrize("text", ["", "{", '{"package": "on'])
def test_a_torn_stamp_means_that_nothing_was_done(tmp_path: Path, text: str) -> None:
    (tmp_path / "stamp.json").write_text(text)
    assert setup_venv.Stamp(tmp_path / "stamp.json").done == {}


def test_a_second_set_up_waits_for_the_first(tmp_path: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'tools')!r}); import setup_venv, pathlib\n"
        f"with setup_venv.one_at_a_time(pathlib.Path({str(tmp_path)!r})): print('mine')"
    )
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as second:
        assert second.stderr is not None
        assert "another set-up of this folder is running" in second.stderr.readline()
        assert second.poll() is None
        os.close(folder)
        assert second.communicate(timeout=10)[0] == "mine\n"


def test_another_python_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    with pytest.raises(setup_venv.SetupError, match=r"Python 3\.11 is needed"):
        setup_venv.check_python()
