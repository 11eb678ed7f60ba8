"""The Python that runs our own program in a container: ours, with its loader, whatever the image holds (P16).

An image need not have Python, nor a libc of a certain kind. Why no POSIX `sh` then, which images do have: it has no
lock to hold for its life, cannot tell how much of a write went through and so can neither retry it on a full disk nor
stop at a length, is nobody's subreaper, and switches users only by programs that images may lack. So the interpreter
that runs us, its loader and libraries and the few modules of the standard library that `attendant.py` imports, 10 to
30 MB in all, are put into a volume once, and every container mounts that read-only. It starts as fast as outside.

The volume's name is a digest of what is in it. `ld.so` is unpacked last, so a volume that has it is whole; a container
that ends because it is not there tells us to fill the volume (again).
"""

from __future__ import annotations

import hashlib
import io
import json
import marshal
import platform
import subprocess
import sys
import tarfile
from functools import cache
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash
from pathlib import Path

from runtime.errors import LaunchFailed

FOLDER = "/.outlast/python"
LOADER = f"{FOLDER}/ld.so"
VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
# What a container runs of ours, by their places in the package. `__init__` of both packages is but a docstring.
OWN = ("__init__", "sandboxes/__init__", "sandboxes/attendant", "sandboxes/command", "sandboxes/commanded")
OWN_TOO = (
    "sandboxes/isolated",
    "sandboxes/recorder",
    "sandboxes/spool",
    "sandboxes/tool_server",
    "sandboxes/baseline",
    "sandboxes/diffing",
    "sandboxes/file_teller",
    "sandboxes/file_watch",
    "sandboxes/result_sender",
    "sandboxes/results",
    "sandboxes/workspace_filler",
    "sandboxes/workspace_marks",
)
PACKAGE = Path(__file__).resolve().parents[1]
LOOK = """
import json, sys
sys.path.append(sys.argv[1])
import encodings.ascii, encodings.latin_1, encodings.utf_8
import runtime.sandboxes.attendant, runtime.sandboxes.commanded, runtime.sandboxes.result_sender
import runtime.sandboxes.file_teller, runtime.sandboxes.workspace_filler
files = {name: module.__file__ for name, module in sys.modules.items() if getattr(module, "__file__", None)}
mapped = {line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if "/" in line}
print(json.dumps({"files": files, "mapped": sorted(mapped)}))
"""
LOOK_S = 60.0
UNCHECKED = 0b01
MACHINES = {"arm64": "aarch64", "amd64": "x86_64"}  # other words for the same


def same_machine(architecture: str) -> bool:
    """Return whether what runs here runs on an engine of this architecture."""
    return MACHINES.get(architecture, architecture) == platform.machine()


def program(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs one of our modules in a container."""
    run = f"import sys; sys.path.append('{FOLDER}/outlast'); from runtime.sandboxes import {module}; {module}.main()"
    return [*interpreter(), "-c", run, *arguments]


def script(module: str, *arguments: str) -> list[str]:
    """Return the command line of a module that imports none of ours; no word of it has a blank."""
    return [*interpreter(), f"{FOLDER}/outlast/runtime/{module}.py", *arguments]


def keeper() -> list[str]:
    """Return the command line of what keeps a container up while nothing else runs in it."""
    return [*interpreter(), "-c", "import signal; signal.pause()"]


def waiter(within_s: int) -> list[str]:
    """Return the command line of a keeper that ends by itself."""
    return [*interpreter(), "-c", f"import signal; signal.alarm({within_s}); signal.pause()"]


def interpreter() -> list[str]:
    """Return the command line of the Python in a container."""
    libraries, binary = f"{FOLDER}/lib", f"{FOLDER}/bin/{VERSION}"
    return [LOADER, "--library-path", libraries, binary, "-I", "-S", "-X", "utf8"]


@cache
def volume() -> str:
    """Return the name of the volume: other bytes have another name."""
    digest = hashlib.sha256(f"{sys.version}\n{platform.machine()}\n{platform.libc_ver()}".encode())
    for name in (*OWN, *OWN_TOO, "sandboxes/container_python"):
        digest.update((PACKAGE / f"{name}.py").read_bytes())
    return f"outlast-python-{digest.hexdigest()[:16]}"


def archive() -> bytes:
    """Return what is unpacked in the volume, as a tar. Takes some tenths of a second.

    Raises LaunchFailed if this Python cannot be taken along."""
    seen = _look()
    libraries, loader = _libraries(seen)
    with io.BytesIO() as made:
        with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as tar:
            _add(tar, f"bin/{VERSION}", Path(sys.executable).resolve().read_bytes(), 0o755)
            for name, file in libraries.items():
                _add(tar, f"lib/{name}", file.read_bytes(), 0o755)
            for name, file in _modules(seen).items():
                _add_module(tar, f"lib/{VERSION}/{name}", file)
            for name in (*OWN, *OWN_TOO):
                _add_module(tar, f"outlast/runtime/{name}.py", PACKAGE / f"{name}.py")
            _add(tar, "ld.so", loader.read_bytes(), 0o755)
        return made.getvalue()


def _look() -> dict[str, dict[str, str]]:
    """Return what a Python that runs our program has loaded."""
    argv = [sys.executable, "-I", "-S", "-X", "utf8", "-c", LOOK, str(PACKAGE.parent)]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=LOOK_S, check=True, cwd="/")
    except (OSError, subprocess.SubprocessError) as error:
        raise LaunchFailed(f"{sys.executable} does not say what it needs to run in a container: {error}.") from error
    seen: dict[str, dict[str, str]] = json.loads(done.stdout)
    return seen


def _modules(seen: dict[str, dict[str, str]]) -> dict[str, Path]:
    """Return the files of the standard library, by their places in it; `os` too, which tells Python where it is."""
    library = Path(json.__file__).resolve().parents[1]
    files = [Path(name).resolve() for name in seen["files"].values()]
    found = {
        str(file.relative_to(library)): file
        for file in files
        if file.is_relative_to(library) and not file.is_relative_to(library / "site-packages")
    }
    return {"os.py": library / "os.py", **found}


def _libraries(seen: dict[str, dict[str, str]]) -> tuple[dict[str, Path], Path]:
    """Return the shared libraries by the names that they are asked for by, and the loader."""
    loader = next((Path(name) for name in seen["mapped"] if Path(name).name.startswith("ld-")), None)
    if loader is None:
        raise LaunchFailed(f"{sys.executable} has no dynamic loader, and so cannot be taken into a container.")
    found: dict[str, Path] = {}
    extensions = [name for name in seen["files"].values() if ".so" in Path(name).suffixes]
    for binary in (str(Path(sys.executable).resolve()), *extensions):
        listed = subprocess.run([loader, "--list", binary], capture_output=True, text=True, check=True)
        for line in listed.stdout.split("\n"):
            name, arrow, place = line.strip().partition(" => ")
            if arrow and (file := Path(place.rpartition(" (")[0])).is_absolute():
                found[name] = file
    found.pop(loader.name, None)
    return found, loader


def _add_module(tar: tarfile.TarFile, name: str, file: Path) -> None:
    """Add a module, and what it is compiled to: the volume is read-only where it is used."""
    _add(tar, name, file.read_bytes(), 0o644)
    if file.suffix == ".py":
        folder, _, last = name.rpartition("/")
        _add(tar, f"{folder}/{cache_from_source(last)}", _compiled(file), 0o644)


def _compiled(file: Path) -> bytes:
    """Return the module compiled, with the mark that nobody need compare it with its source (PEP 552)."""
    source = file.read_bytes()
    code = compile(source, file.name, "exec", dont_inherit=True)
    return MAGIC_NUMBER + UNCHECKED.to_bytes(4, "little") + source_hash(source) + marshal.dumps(code)


def _add(tar: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    tar.addfile(entry, io.BytesIO(data))
