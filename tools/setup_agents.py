"""Make `build/agents` ready: the coding agents from npm that tests/agents/ runs, in the versions that its lock names.

    python3.11 tools/setup_agents.py

As `setup_node.py`, with its lock and stamp. Scripts of packages are not run, so what those would have done is done
here: `build/agents/bin` holds `claude` (a program of its own, which its package has for each platform) and `codex` (a
small script on Node that starts the agent, as its users get it).
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import setup_node
from setup_venv import ROOT, SetupError, exit_code, one_at_a_time, say

SOURCE = ROOT / "tests" / "agents"
TARGET = ROOT / "build" / "agents"
# What Node calls this machine. The libc is the one of Python's own build.
_MACHINES = {"x86_64": "x64", "aarch64": "arm64"}
_LIBC = "" if platform.libc_ver()[0] else "-musl"


def programs(target: Path) -> dict[str, Path]:
    """Return where each agent's program is. Raises SetupError if npm installed none for this machine."""
    machine = _MACHINES.get(platform.machine(), platform.machine())
    modules = target / "node_modules"
    found = {
        "claude": modules / "@anthropic-ai" / f"claude-code-linux-{machine}{_LIBC}" / "claude",
        "codex": modules / "@openai" / "codex" / "bin" / "codex.js",
    }
    absent = [name for name, program in found.items() if not program.exists()]
    if absent:
        raise SetupError(f"npm has no {' and no '.join(absent)} for linux-{machine}{_LIBC}")
    return found


def native(target: Path) -> dict[str, Path]:
    """Return the programs that need no Node, for a container: of Codex, what its script starts."""
    machine = platform.machine()
    codex = target / "node_modules" / "@openai" / f"codex-linux-{_MACHINES.get(machine, machine)}" / "vendor"
    return {
        "claude": programs(target)["claude"],
        "codex": codex / f"{machine}-unknown-linux-musl" / "bin" / "codex",
    }


def link(folder: Path, found: dict[str, Path]) -> None:
    """Put links to the programs into `folder`; whoever starts one of them now finds the old one or the new one."""
    folder.mkdir(exist_ok=True)
    for name, program in found.items():
        program.chmod(0o755)
        temporary = folder / f".{name}.{os.getpid()}"
        temporary.symlink_to(os.path.relpath(program, folder))
        temporary.replace(folder / name)


def prepare(root: Path = ROOT, source: Path = SOURCE, target: Path = TARGET) -> Path:
    """Return the folder with the programs, made ready. Raises SetupError."""
    with one_at_a_time(root):
        setup_node.install(source, target)
        link(target / "bin", programs(target))
    return target / "bin"


def main() -> int:
    """Run one set-up; return the exit code."""
    return exit_code(lambda: say(f"agents are in {prepare()}"))


if __name__ == "__main__":
    sys.exit(main())
