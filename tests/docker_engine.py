"""A real Docker engine of the tests' own: started in namespaces of its own, killed, frozen, restarted; images without
a registry.

Its processes, mounts and network are in namespaces whose first process ends with us: so nothing of it is left behind,
however the tests end, and nothing of the machine's own engine, if there is one, is touched. It has no network at all.
Root is needed. From outside, every process of it is seen under another id.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from waiting import wait_until

PROGRAMS = ("dockerd", "docker-init", "unshare", "nsenter", "setpriv", "mount", "busybox")
IMAGE = "outlast-test/busybox:1"
READY_S = 30.0
CGROUPS = Path("/sys/fs/cgroup")
# What a run of the engine leaves to the machine it is on is nothing: the folders it insists on are the namespace's own.
OWN_RUN = "mount -t tmpfs tmpfs /run && mkdir -p /etc/docker && mount -t tmpfs tmpfs /etc/docker && exec docker-init {}"


def missing() -> str | None:
    """Return why no engine can be started here, or None."""
    if os.geteuid() != 0:
        return "only root can start a Docker engine"
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent:
        return f"not on the PATH: {', '.join(absent)}"
    head = Path(shutil.which("busybox") or "").read_bytes()[:4096]
    return "busybox needs libraries, and must be the static one" if b"/ld-linux" in head else None


@cache
def busybox_image() -> bytes:
    """Return the smallest image in which an agent can live: a static shell with its tools, and nothing else."""
    program = Path(shutil.which("busybox") or "")
    tools = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    with io.BytesIO() as made:
        with tarfile.open(fileobj=made, mode="w") as tar:
            tar.add(program.resolve(), "bin/busybox")
            for tool in tools:
                if tool != "busybox":
                    link = tarfile.TarInfo(f"bin/{tool}")
                    link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                    tar.addfile(link)
        return made.getvalue()


class DockerEngine:
    """One engine; `live_restore`: its containers outlive it; `disk_bytes`: all that it can store, in memory."""

    def __init__(self, *, live_restore: bool = False, disk_bytes: int = 0) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="outlast-docker-"))
        self.address = f"unix://{self.folder}/docker.sock"
        self.data = self.folder / "data"
        self.data.mkdir()
        self._disk_bytes = disk_bytes
        self._live_restore = live_restore
        self._cgroup = f"/{self.folder.name}"
        self._spaces = self._make_spaces()
        self._daemon: subprocess.Popen[bytes] | None = None
        try:
            self._first = self._first_process()
            self.start()
        except BaseException:
            self.close()
            raise

    def _make_spaces(self) -> subprocess.Popen[bytes]:
        disk = f"mount -t tmpfs -o size={self._disk_bytes} tmpfs {self.data} && " if self._disk_bytes else ""
        inside = disk + OWN_RUN.format("-- sleep infinity")
        spaces = ["unshare", "--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child", "--mount-proc"]
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *spaces, "sh", "-c", inside],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _first_process(self) -> int:
        children = Path(f"/proc/{self._spaces.pid}/task/{self._spaces.pid}/children")

        def found() -> int:
            pids = children.read_text().split()
            return int(pids[0]) if pids and b"docker-init" in _command(int(pids[0])) else 0

        return wait_until(found, "the engine's namespaces", READY_S)

    def start(self) -> None:
        """Start it, and return when it answers."""
        options = {
            "--data-root": self.data,
            "--exec-root": self.folder / "exec",
            "--pidfile": self.folder / "dockerd.pid",
            "--host": self.address,
            "--bridge": "none",
            "--cgroup-parent": self._cgroup,
            "--shutdown-timeout": 1,
        }
        flags = ["--iptables=false", "--ip-masq=false", f"--live-restore={str(self._live_restore).lower()}"]
        (self.folder / "dockerd.pid").unlink(missing_ok=True)
        argv = [f"{name}={value}" for name, value in options.items()] + flags
        with (self.folder / "log").open("ab") as log:
            self._daemon = subprocess.Popen(
                ["nsenter", "--target", str(self._first), "--all", "dockerd", *argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._answers, f"the engine answers; see {self.folder / 'log'}", READY_S)

    def _answers(self) -> bool:
        assert self._daemon is not None
        assert self._daemon.poll() is None, (self.folder / "log").read_text()[-2000:]
        with socket.socket(socket.AF_UNIX) as probe:  # Docker's client leaves its socket open where nobody listens
            if probe.connect_ex(self.address.removeprefix("unix://")):
                return False
        with self.client() as client:
            return bool(client.ping())

    def client(self) -> Any:
        """Return a client of Docker's own, to look behind the provider."""
        # By its whole name: to type checkers the folder tests/docker is `docker` too.
        return import_module("docker").APIClient(base_url=self.address, version="1.40", timeout=30)

    def import_image(self, name: str = IMAGE, archive: bytes | None = None) -> None:
        """Make an image without a registry."""
        repository, _, tag = name.partition(":")
        with self.client() as client:
            client.import_image_from_data(archive or busybox_image(), repository=repository, tag=tag)

    def open_loopback(self) -> Path:
        """Return the network namespace of the engine and of its containers on the network `host`, its loopback up."""
        namespace = Path(f"/proc/{self._first}/ns/net")
        subprocess.run(["nsenter", f"--net={namespace}", "busybox", "ip", "link", "set", "lo", "up"], check=True)
        return namespace

    @property
    def pid(self) -> int:
        """Return the daemon, as seen from here."""
        assert self._daemon is not None
        children = Path(f"/proc/{self._daemon.pid}/task/{self._daemon.pid}/children").read_text().split()
        return int(children[0]) if children else self._daemon.pid

    def free_bytes(self) -> int:
        """Return what is free on the engine's disk, as its own processes see it."""
        return shutil.disk_usage(f"/proc/{self._first}/root{self.data}").free

    def end(self, signum: signal.Signals) -> None:
        """End the daemon alone, and see it gone."""
        assert self._daemon is not None
        os.kill(self.pid, signum)
        self._daemon.wait(READY_S)

    def containers(self) -> list[str]:
        """Return the names of all containers."""
        with self.client() as client:
            return sorted(one["Names"][0].strip("/") for one in client.containers(all=True))

    def volumes(self, what: str = "") -> list[str]:
        """Return the names of the volumes that begin with `outlast-<what>`."""
        with self.client() as client:
            found = client.volumes()["Volumes"] or []
        return sorted(one["Name"] for one in found if one["Name"].startswith(f"outlast-{what}"))

    def close(self) -> None:
        """End everything of it and remove its folder."""
        self._spaces.kill()
        self._spaces.wait(READY_S)
        if self._daemon is not None:
            self._daemon.wait(READY_S)
        _remove_cgroups(self._cgroup.strip("/"))
        shutil.rmtree(self.folder, ignore_errors=True)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _remove_cgroups(name: str) -> None:
    for top in (CGROUPS / name, *CGROUPS.glob(f"*/{name}")):
        for folder, _, _ in os.walk(top, topdown=False):
            wait_until(partial(_removed, Path(folder)), f"the end of {folder}", READY_S)


def _removed(cgroup: Path) -> bool:
    try:
        cgroup.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
