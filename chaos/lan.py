"""A network of its own with hosts on it, all on this machine: what node loss and partitions need.

The rack is one process that holds the switch's network namespace and every host's disk; a host (`host.py`) is a
process that holds network, mount and process-id namespaces of its own. Nothing of this has a name on the machine, and
every namespace, mount and process goes when its holder goes, which ends with its standard input: so two racks never
clash, and nothing is left behind, however this process ends. No traffic leaves the rack.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from host import Host, NamespaceRefused

CHECKOUT = Path(__file__).resolve().parents[1]
NETWORK = "10.77.0"
DISK_BYTES = 1 << 30
READY_S = 20


def missing() -> str | None:
    """Return why there can be no hosts on this machine, or None."""
    absent = [program for program in ("ip", "tc", "unshare", "nsenter", "mount") if shutil.which(program) is None]
    if absent:
        return f"not on the PATH: {', '.join(absent)}"
    tried = subprocess.run(
        ["unshare", "-n", "-m", "-p", "-f", "--mount-proc", "ip", "link", "add", "br0", "type", "bridge"],
        capture_output=True,
        text=True,
        check=False,
    )
    return None if tried.returncode == 0 else f"no namespaces of our own: {tried.stderr.strip()[:200]}"


class Lan:
    """A switch, the disks, and the hosts; a context manager."""

    def __init__(self, folder: Path, hosts: int = 3, *, disk_bytes: int = DISK_BYTES, reaps: bool = True) -> None:
        """`folder` is where each host finds its own disk."""
        self.folder = folder
        self._disks = folder.with_name(f"{folder.name}-disks")
        self._rack: subprocess.Popen[bytes] | None = None
        self.hosts = [Host(self, number, folder, reaps=reaps) for number in range(hosts)]
        self._disk_bytes = disk_bytes

    # --- life ---

    def __enter__(self) -> Self:
        try:
            self._begin()
            for host in self.hosts:
                host.boot()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for host in self.hosts:
            (self._disks / str(host.number)).mkdir(parents=True, exist_ok=True)
        # `echo` comes from inside, so the namespaces are there; `cat` ends with our end of its stdin.
        self._rack = subprocess.Popen(
            ["unshare", "-n", "-m", "sh", "-c", "echo && exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._rack.stdout is not None
        if not self._rack.stdout.readline():
            raise NamespaceRefused("the rack's namespaces could not be made")
        self.do("ip", "link", "add", "br0", "type", "bridge")
        self.do("ip", "link", "set", "br0", "up")
        for host in self.hosts:
            disk = str(self._disks / str(host.number))
            self.do("mount", "-t", "tmpfs", "-o", f"size={self._disk_bytes},mode=755", "tmpfs", disk)

    def close(self) -> None:
        """End every host and the switch; remove the folders."""
        for host in self.hosts:
            host.kill()
        if self._rack is not None:
            self._rack.kill()
            self._rack.communicate()
            self._rack = None
        shutil.rmtree(self._disks, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- the switch ---

    @property
    def visible(self) -> list[str]:
        """Return the folders a host needs of this machine wherever they lie: the checkout and its Python."""
        wanted = {CHECKOUT, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
        within = {path for path in wanted if any(path != other and path.is_relative_to(other) for other in wanted)}
        return [str(path) for path in sorted(wanted - within)]

    @property
    def pid(self) -> int:
        """Return the process that holds switch and disks."""
        assert self._rack is not None, "the rack is not there"
        return self._rack.pid

    def inside(self) -> list[str]:
        """Return the beginning of a command that runs in the rack."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", f"--mount=/proc/{self.pid}/ns/mnt", "--"]

    def do(self, *command: str) -> None:
        """Run a short command in the rack. Raises NamespaceRefused."""
        done = subprocess.run([*self.inside(), *command], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NamespaceRefused(f"{' '.join(command)}: {done.stderr.strip()}")

    def disk(self, number: int) -> Path:
        """Return a host's disk as this process sees it."""
        return Path(f"/proc/{self.pid}/root{self._disks}/{number}")

    def disk_inside(self, number: int) -> str:
        """Return a host's disk as the rack sees it."""
        return str(self._disks / str(number))

    def cut(self, number: int) -> None:
        """Take the cable out of a host."""
        self.do("ip", "link", "set", self.hosts[number].port, "down")

    def heal(self, number: int) -> None:
        """Put it back, and let both directions pass again."""
        host = self.hosts[number]
        self.do("ip", "link", "set", host.port, "up")
        for where, device in ((self.inside(), host.port), (host.network(), host.device)):
            subprocess.run(
                [*where, "tc", "qdisc", "del", "dev", device, "root"], capture_output=True, check=False
            )  # fails if it was whole

    def cut_towards(self, number: int) -> None:
        """Drop what is sent to a host; what it sends still arrives."""
        self.do("tc", "qdisc", "replace", "dev", self.hosts[number].port, "root", "pfifo", "limit", "0")

    def cut_from(self, number: int) -> None:
        """Drop what a host sends; what is sent to it still arrives."""
        host = self.hosts[number]
        command = ["tc", "qdisc", "replace", "dev", host.device, "root", "pfifo", "limit", "0"]
        subprocess.run([*host.network(), *command], check=True, capture_output=True)
