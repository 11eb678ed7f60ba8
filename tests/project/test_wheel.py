"""The wheel alone is enough: installed outside the checkout, it serves and runs from a folder with foreign packages.

A user's own folder may hold a `runtime/` or `actors/`; ours must win on every node, or refuse. The virtual environment
of this test borrows Ray and the other dependencies from the one that runs the tests, since installing them again would
take minutes; `outlast` itself comes from the wheel.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import build_wheel
import httpx
import leftovers
import pytest
from waiting import wait_until

from runtime.settings import load
from serve_app.ray_environment import default_temp_dir, folders_of, free_port

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("runtime", "actors", "serve_app")
START_S = 90.0  # Ray's own start takes 5 to 20 s on two busy cores
STOP_S = 30.0  # promised to users (design 8)

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel.build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def outlast(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the console script of a fresh environment that has the wheel."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    pip = [sys.executable, "-I", "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install"]
    subprocess.run([*pip, "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    # After the installation: pip must not take an `outlast` of the borrowed packages for ours.
    borrowed = home / "lib" / "python3.11" / "site-packages" / "borrowed.pth"
    borrowed.write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin" / "outlast"


@pytest.fixture
def foreign_folder(tmp_path: Path) -> Path:
    """Return a folder whose own `runtime` and `actors` must never be imported."""
    folder = tmp_path / "project"
    for package in PACKAGES:
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text(f"raise SystemExit('a foreign {package} was imported')\n")
    return folder


@pytest.fixture
def env(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Yield the environment of an instance of its own; afterwards nothing that carries it lives."""
    data = str(tmp_path / "data")
    env = {
        "PATH": os.defpath,
        "HOME": str(tmp_path),  # Ray keeps a token there
        "LANG": "C.UTF-8",
        "OUTLAST_DATA_DIR": data,
        "OUTLAST_PORT": str(free_port()),
    }
    yield env
    leftovers.end("OUTLAST_DATA_DIR", data)
    for folder in folders_of(default_temp_dir(load(env))):
        shutil.rmtree(folder, ignore_errors=True)


def test_the_wheel_holds_the_three_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert not [name for name in names if "__pycache__" in name]


def test_the_wheel_holds_every_module_of_the_checkout(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.endswith(".py")}
    assert packed == {str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}


def test_the_wheel_serves_and_runs_in_a_folder_with_foreign_packages(
    outlast: Path, foreign_folder: Path, env: dict[str, str], tmp_path: Path
) -> None:
    printed = tmp_path / "serve.out"
    with printed.open("wb") as output:
        serve = subprocess.Popen(
            [outlast, "serve"], cwd=foreign_folder, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    with serve, ended_anyway(serve):
        wait_until(lambda: serve.poll() is not None or _ready(env), "a ready instance", within_s=START_S)
        assert serve.poll() is None, printed.read_text()
        run = subprocess.run(
            [outlast, "run", "echo hi"],
            cwd=foreign_folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (run.stdout, run.returncode) == ("hi\n", 0), run.stderr
        serve.send_signal(signal.SIGTERM)
        assert serve.wait(STOP_S) == 0, printed.read_text()
    assert f"127.0.0.1:{env['OUTLAST_PORT']}" in printed.read_text()
    wait_until(lambda: not leftovers.carrying("OUTLAST_DATA_DIR", env["OUTLAST_DATA_DIR"]), "no process left behind")


@contextmanager
def ended_anyway(serve: subprocess.Popen[bytes]) -> Iterator[None]:
    """End `serve` when the body has failed: Popen's own context would wait for it for ever."""
    try:
        yield
    finally:
        serve.kill()  # nothing, once it has been waited for


def _ready(env: dict[str, str]) -> bool:
    if not Path(env["OUTLAST_DATA_DIR"], "instance.json").exists():  # written last, and where `run` looks
        return False
    try:
        return httpx.get(f"http://127.0.0.1:{env['OUTLAST_PORT']}/readyz", timeout=5).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
