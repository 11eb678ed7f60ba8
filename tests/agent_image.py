"""An image with the real agents, made of this machine's files without a registry: their programs, a shell with its
tools, and the libraries that these need."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import setup_agents
from docker_engine import DockerEngine, busybox_image

NAME = "outlast-test/agents:1"
IMPORT_S = 300


def import_agents(engine: DockerEngine, folder: Path, *names: str) -> str:
    """Make the image with the agents of these names on an engine; return its name."""
    archive = folder / "agents.tar"
    pack(archive, {name: setup_agents.native(setup_agents.TARGET)[name] for name in names})
    repository, _, tag = NAME.partition(":")
    with engine.client() as client:
        client.timeout = IMPORT_S
        client.import_image_from_file(str(archive), repository=repository, tag=tag)
    archive.unlink()
    return NAME


def pack(archive: Path, programs: dict[str, Path]) -> None:
    """Write the image's files: these programs, what they need, and a small shell."""
    bash = Path(shutil.which("bash") or "")
    with tarfile.open(archive, "w") as tar, tarfile.open(fileobj=io.BytesIO(busybox_image())) as small:
        for member in small:
            if member.name != "bin/bash":
                tar.addfile(member, small.extractfile(member) if member.isreg() else None)
        for folder in ("tmp", "var/tmp"):
            made = tarfile.TarInfo(folder)
            made.type, made.mode = tarfile.DIRTYPE, 0o1777
            tar.addfile(made)
        tar.add(bash.resolve(), "bin/bash")
        for name, program in programs.items():
            tar.add(program, f"usr/local/bin/{name}")
        for library in sorted({one for program in (bash, *programs.values()) for one in _libraries(program)}):
            tar.add(library.resolve(), str(library).lstrip("/"))


def _libraries(program: Path) -> list[Path]:
    """Return what the loader would load for a program, and the loader; nothing for a static one."""
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", told)]
