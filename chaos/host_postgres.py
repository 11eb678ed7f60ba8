"""A PostgreSQL server on a host: its programs are found here, it listens on the host's own address, as a user that is
not root, and its data is on the host's disk."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from pathlib import Path

from host import Host
from postgres_programs import folder_with

from runtime import process
from runtime.process import ProcessIdentity

PORT = 5432
UID = 65534  # nobody: root may not run it
START_S = 60.0
LOOK_S = 0.1
PROGRAMS = ("initdb", "postgres", "psql", "pg_isready")
SETTINGS = {
    "shared_buffers": "32MB",
    "max_connections": "100",
    "log_min_messages": "warning",
    "unix_socket_directories": "",
    "max_wal_size": "128MB",
    "min_wal_size": "32MB",
    "wal_keep_size": "0",
}


def programs() -> Path | None:
    """Return the folder of the server's programs; None if there are none."""
    return folder_with(*PROGRAMS)


class HostPostgres:
    """One server on one host."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._password = secrets.token_hex(16)
        self._postmaster: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return what OUTLAST_STORE is set to on every host."""
        return f"postgresql://outlast:{self._password}@{self.host.address}:{PORT}/outlast"

    @property
    def _env(self) -> dict[str, str]:
        return {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "PGPASSWORD": self._password}

    def _program(self, name: str) -> str:
        folder = programs()
        assert folder is not None, "PostgreSQL is not installed"
        return str(folder / name)

    # --- life ---

    def make(self) -> None:
        """Make its data folder, the user `outlast` and that user's database; it runs then."""
        place = self.host.disk / "postgres"
        place.mkdir(mode=0o700)
        os.chown(place, UID, UID)
        secret = self.host.disk / "postgres-password"
        secret.write_text(self._password)
        secret.chmod(0o644)  # of a server that only this rack can reach, and only as long as it lives
        data, given = str(self.host.folder / "postgres"), str(self.host.folder / "postgres-password")
        initdb = [self._program("initdb"), "-D", data, "-U", "postgres", f"--pwfile={given}", "-E", "UTF8"]
        self.host.run([*initdb, "-A", "scram-sha-256", "--locale=C"], self._env, START_S, uid=UID)
        with (place / "pg_hba.conf").open("a") as rules:
            rules.write("host all all samenet scram-sha-256\n")
        self.start()
        for statement in (
            f"CREATE ROLE outlast LOGIN PASSWORD '{self._password}'",
            "CREATE DATABASE outlast OWNER outlast",
        ):
            self.query(statement, "postgres")

    def query(self, statement: str, database: str = "outlast") -> str:
        """Run a statement as the superuser; return the rows as psql prints them."""
        where = ["-h", self.host.address, "-p", str(PORT), "-U", "postgres", "-d", database]
        return self.host.run([self._program("psql"), *where, "-XAtqc", statement], self._env, uid=UID)

    def start(self) -> None:
        """Start it; return when it answers."""
        self.crash()
        (self.host.disk / "postgres" / "postmaster.pid").unlink(missing_ok=True)
        options = {**SETTINGS, "listen_addresses": self.host.address, "port": str(PORT)}
        command = [self._program("postgres"), "-D", str(self.host.folder / "postgres")]
        command += [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with (self.host.disk / "postgres.out").open("ab") as output:
            self._postmaster = self.host.start(command, self._env, output, uid=UID)
        deadline = time.monotonic() + START_S
        while not self._answers():
            if time.monotonic() > deadline or self._postmaster.poll() is not None:
                said = (self.host.disk / "postgres.out").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"PostgreSQL did not start:\n{said}")
            time.sleep(LOOK_S)

    def _answers(self) -> bool:
        command = [self._program("pg_isready"), "-h", self.host.address, "-p", str(PORT)]
        ready = [*self.host.inside(UID), *command]
        return subprocess.run(ready, env=self._env, capture_output=True, check=False).returncode == 0

    @property
    def runs(self) -> bool:
        """Return whether its first process lives."""
        return self._postmaster is not None and self._postmaster.poll() is None

    def processes(self) -> list[ProcessIdentity]:
        """Return all of its processes."""
        return [who for who in self.host.processes() if _is_postgres(who.pid)]

    def crash(self) -> None:
        """SIGKILL all of it at once."""
        while left := self.processes():
            for who in left:
                process.send(who, signal.SIGKILL)
            time.sleep(LOOK_S)


def _is_postgres(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name == "postgres"
    except OSError:
        return False
