"""Build the wheel of a checkout from a clean copy: `python tools/build_wheel.py FOLDER` prints where it is."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import package_sources

ROOT = Path(__file__).resolve().parent.parent


def build(root: Path, target: Path) -> Path:
    """Build into `target`, leave no older wheel there, and return the new one's path.

    Raises CalledProcessError with the builder's output."""
    target.mkdir(parents=True, exist_ok=True)
    for older in target.glob("outlast-*.whl"):
        older.unlink()
    with tempfile.TemporaryDirectory(prefix="outlast-build-") as folder:
        package_sources.copy(root, Path(folder))
        # Not isolated: the builder is the pinned one of this environment, and nothing is downloaded.
        argv = [sys.executable, "-I", "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), folder]
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    (wheel,) = target.glob("outlast-*.whl")
    return wheel


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: build_wheel.py FOLDER")
    try:
        print(build(ROOT, Path(sys.argv[1]).resolve()))
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error.stdout.decode(errors='replace')}\nThe wheel could not be built; see above.")
