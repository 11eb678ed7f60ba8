"""`outlast`, as a test calls it: in this process with click's runner, or as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

import serve_app
from serve_app.program import cli
from serve_app.trials import Patience

PATIENCE = Patience(first_s=1.0, lost_s=10.0, pause_s=0.002, longest_pause_s=0.02, silence_s=10.0)
PACKAGES = Path(serve_app.__file__).parent.parent


class Outlast:
    """The program, with its data directory."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.children: list[subprocess.Popen[bytes]] = []

    def __call__(self, *args: str, input: bytes | None = None, patience: Patience = PATIENCE) -> Result:
        """Run a command here; `exit_code`, `stdout` and `stderr` are in the result."""
        env = {"OUTLAST_DATA_DIR": str(self.data_dir)}
        return CliRunner(env=env).invoke(cli, args, input=input, obj=patience, prog_name="outlast")

    def begin(self, *args: str) -> subprocess.Popen[bytes]:
        """Start a command as a process, with pipes."""
        env = {"PATH": os.environ["PATH"], "OUTLAST_DATA_DIR": str(self.data_dir), "PYTHONPATH": str(PACKAGES)}
        argv = [sys.executable, "-P", "-m", "serve_app.cli", *args]
        child = subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.children.append(child)
        return child

    def close(self) -> None:
        """End what was begun and still runs."""
        for child in self.children:
            child.kill()
            child.wait()
            for pipe in (child.stdout, child.stderr):
                if pipe is not None:
                    pipe.close()
