"""One host of a `Lan`: its processes, disk and address, and what can happen to it: kill, freeze, thaw, boot again.

Seen from here, its processes have the machine's own process ids; seen from inside, ids of their own (`inner_pid`).
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from runtime import process
from runtime.process import ProcessIdentity

if TYPE_CHECKING:
    from lan import Lan

INIT = Path(__file__).with_name("host_init.py")
CLONE_NEWNET = 0x40000000
PATIENCE_S = 15.0
LOOK_S = 0.01


class NamespaceRefused(Exception):
    """This machine did not let us make or enter a namespace."""


class Host:
    """One host. It is down until `boot`."""

    def __init__(self, lan: Lan, number: int, folder: Path, *, reaps: bool) -> None:
        self.number = number
        self.folder = folder
        self.boots = 0
        self._lan = lan
        self._reaps = reaps
        self._holder: subprocess.Popen[str] | None = None
        self._started: list[subprocess.Popen[bytes]] = []

    # --- names ---

    @property
    def address(self) -> str:
        """Return its address on the switch."""
        return f"10.77.0.{self.number + 1}"

    @property
    def port(self) -> str:
        """Return the switch's end of its cable."""
        return f"p{self.number}b{self.boots}"

    @property
    def device(self) -> str:
        """Return its own end of the cable."""
        return f"v{self.number}b{self.boots}"

    @property
    def disk(self) -> Path:
        """Return its disk as this process sees it; there while the host is down, too."""
        return self._lan.disk(self.number)

    @property
    def temp(self) -> Path:
        """Return its /tmp as this process sees it; gone while the host is down."""
        return Path(f"/proc/{self._pid}/root/tmp") if self.up else Path("/nonexistent")

    @property
    def machine_id(self) -> str:
        """Return the id that its sandboxes' keys name."""
        return (self.disk / "machine-id").read_text().strip()

    @property
    def boot_id(self) -> str:
        """Return the id of its newest boot."""
        return (self.disk / "boot-id").read_text().strip()

    @property
    def up(self) -> bool:
        """Return whether it runs."""
        return self._holder is not None

    # --- life ---

    def boot(self) -> None:
        """Start it: an address, its disk as it was, nothing running. Raises NamespaceRefused."""
        assert not self.up
        self.boots += 1
        own = ["unshare", "-n", "-m", "-p", "-f", "--mount-proc", "--kill-child=SIGKILL", "--"]
        disk = self._lan.disk_inside(self.number)
        init = [sys.executable, "-I", "-S", str(INIT), disk, str(self.folder), str(self.number), str(int(self._reaps))]
        self._holder = subprocess.Popen(
            [*self._lan.inside(), *own, *init, *self._lan.visible],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._answer() != "ready":
            raise NamespaceRefused(f"host {self.number} could not be set up")
        self._plug_in()

    def _plug_in(self) -> None:
        # One hardware address for ever: its neighbours remember it past a reboot.
        hardware = f"02:00:00:00:00:{self.number + 1:02x}"
        peer = ("peer", "name", self.device, "address", hardware, "netns", str(self._pid))
        self._lan.do("ip", "link", "add", self.port, "type", "veth", *peer)
        self._lan.do("ip", "link", "set", self.port, "master", "br0", "up")
        for command in (
            ("link", "set", "lo", "up"),
            ("addr", "add", f"{self.address}/24", "dev", self.device),
            ("link", "set", self.device, "up"),
        ):
            subprocess.run([*self.network(), "ip", *command], check=True, capture_output=True)

    def kill(self) -> None:
        """Power off: every process of it is gone, its address too; its disk stays."""
        if self._holder is None:
            return
        left = list(self.processes())
        self._holder.kill()
        self._holder.communicate()
        self._holder = None
        for program in self._started:
            program.kill()
            program.wait()
        self._started.clear()
        _wait(lambda: not any(process.alive(who) for who in left), f"host {self.number} gone")

    def freeze(self) -> None:
        """Stop every process of it in one step; the kernel goes on answering for it."""
        self._order("freeze")
        _wait(lambda: all(_stopped(who.pid) for who in self.processes()), f"host {self.number} frozen")

    def thaw(self) -> None:
        """Let them go on."""
        self._order("thaw")
        for program in self._started:  # what waits outside for a program stops with it, and is no process of the host
            program.send_signal(signal.SIGCONT)

    def _order(self, word: str) -> None:
        assert self._holder is not None
        assert self._holder.stdin is not None
        self._holder.stdin.write(f"{word}\n")
        self._holder.stdin.flush()
        if self._answer() != "done":
            raise NamespaceRefused(f"host {self.number} does not {word}")

    def _answer(self) -> str:
        assert self._holder is not None
        assert self._holder.stdout is not None
        return self._holder.stdout.readline().strip()

    @property
    def _pid(self) -> int:
        assert self._holder is not None, f"host {self.number} is down"
        return self._holder.pid

    # --- inside ---

    def network(self) -> list[str]:
        """Return the beginning of a command that runs on its network, and with this machine's files."""
        return ["nsenter", f"--net=/proc/{self._pid}/ns/net", "--"]

    def enter_network(self) -> None:
        """Let the calling OS thread make its connections from this host from now on."""
        descriptor = os.open(f"/proc/{self._pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(descriptor, CLONE_NEWNET) != 0:
                raise NamespaceRefused(os.strerror(ctypes.get_errno()))
        finally:
            os.close(descriptor)

    def inside(self, uid: int = 0) -> list[str]:
        """Return the beginning of a command that runs on it."""
        namespaces = {"net": "net", "mount": "mnt", "pid": "pid_for_children"}
        user = [f"--setuid={uid}", f"--setgid={uid}"] if uid else []
        entries = (f"--{kind}=/proc/{self._pid}/ns/{name}" for kind, name in namespaces.items())
        return ["nsenter", *entries, *user, "--"]

    def start(
        self, command: Sequence[str], env: Mapping[str, str], output: IO[Any] | int = subprocess.DEVNULL, uid: int = 0
    ) -> subprocess.Popen[bytes]:
        """Start a program on it; signals to what this returns do not reach the program, its end does come."""
        program = subprocess.Popen(
            [*self.inside(uid), *command],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        self._started.append(program)
        return program

    def run(
        self, command: Sequence[str], env: Mapping[str, str], within_s: float = 60.0, uid: int = 0, input: str = ""
    ) -> str:
        """Run a program on it to its end; return what it printed. Raises CalledProcessError, TimeoutExpired."""
        done = subprocess.run(
            [*self.inside(uid), *command],
            env=dict(env),
            input=input,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=within_s,
            check=False,
        )
        if done.returncode != 0:
            raise subprocess.CalledProcessError(done.returncode, list(command), done.stdout)
        return done.stdout

    # --- its processes ---

    def processes(self, title: str = "") -> Iterator[ProcessIdentity]:
        """Yield its living processes whose command line contains `title`, its first one excepted."""
        if not self.up:
            return
        mine = self._namespace()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            with suppress(OSError):
                if (entry / "ns" / "pid").readlink() != mine or inner_pid(int(entry.name)) == 1:
                    continue
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if title in command and (who := process.identify(int(entry.name))) is not None:
                    yield who

    def has(self, who: ProcessIdentity) -> bool:
        """Return whether a living process runs on it."""
        with suppress(OSError):
            return self.up and Path(f"/proc/{who.pid}/ns/pid").readlink() == self._namespace()
        return False

    def _namespace(self) -> Path:
        return Path(f"/proc/{self._pid}/ns/pid_for_children").readlink()

    def outer(self, pid: int) -> ProcessIdentity | None:
        """Return the process that has this id inside, as this machine knows it."""
        for who in self.processes():
            with suppress(OSError):  # it ends while it is asked
                if inner_pid(who.pid) == pid:
                    return who
        return None


def inner_pid(pid: int) -> int:
    """Return the id that a process has inside its own process-id namespace. Raises OSError if it is gone."""
    for line in Path(f"/proc/{pid}/status").read_text().split("\n"):
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    raise ProcessLookupError(pid)


def _stopped(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return True
    return stat[stat.rindex(b")") + 2 :][:1] in b"TtZX"


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise NamespaceRefused(f"after {PATIENCE_S} s still not: {what}")
        time.sleep(LOOK_S)
