"""A real PostgreSQL server of the tests' own: found, started on loopback, killed, frozen, restarted.

Root may not run it, so it runs as another user then. One folder is initialised for a whole test session and copied.
"""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import psycopg
import waiting
from postgres_programs import folder_with

from serve_app.ray_environment import free_port

PROGRAMS = ("initdb", "postgres")
USERS = ("postgres", "nobody")  # whoever is there, if we are root
# Quick and small. A crash of the process loses nothing with these; a loss of power would.
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "60",
    "autovacuum": "off",
    "log_min_messages": "warning",
    "unix_socket_directories": "",
    "listen_addresses": "127.0.0.1",
}


def programs() -> Path | None:
    """Return the folder of the server's programs; None if there are none."""
    return folder_with(*PROGRAMS)


@cache
def _user() -> int | None:
    """Return the user to run as; None for ourselves."""
    if os.geteuid() != 0:
        return None
    for name in USERS:
        try:
            return pwd.getpwnam(name).pw_uid
        except KeyError:
            continue
    raise RuntimeError(f"root cannot run PostgreSQL, and none of {USERS} is there")


@cache
def _template() -> Path:
    """Return an initialised folder; it goes with this process."""
    folder = Path(tempfile.mkdtemp(prefix="outlast-pg-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    made = folder / "template"
    made.mkdir(0o700)
    _give(made)
    argv = [str(_found("initdb")), "-D", str(made), "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8"]
    subprocess.run([*argv, "--locale=C"], check=True, capture_output=True, user=_user(), cwd="/")
    return made


def _found(program: str) -> Path:
    folder = programs()
    assert folder is not None, "PostgreSQL is not installed"
    return folder / program


def _with_us() -> list[str]:
    """Return what ends a process when we are killed and cannot end it; nothing where there is no such program."""
    program = shutil.which("setpriv")
    return [program, "--pdeathsig", "QUIT"] if program else []


def _give(path: Path) -> None:
    user = _user()
    if user is not None:
        os.chown(path, user, -1)
        for folder, names, files in os.walk(path):
            for name in (*names, *files):
                os.chown(Path(folder) / name, user, -1)


class PostgresServer:
    """One server with the user `outlast`, who owns the database `outlast` and can do nothing else."""

    def __init__(self, **settings: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="outlast-pg-"))
        self._folder.chmod(0o755)
        self.data = self._folder / "data"
        shutil.copytree(_template(), self.data)
        self.data.chmod(0o700)
        _give(self.data)
        self.port = free_port()
        self._settings = {**SETTINGS, **settings, "port": str(self.port)}
        self._process: subprocess.Popen[bytes] | None = None
        self.start()
        with self.admin() as admin:
            admin.execute("CREATE ROLE outlast LOGIN PASSWORD 'not-to-be-shown'")
            admin.execute("CREATE DATABASE outlast OWNER outlast")

    @property
    def url(self) -> str:
        """Return what OUTLAST_STORE is set to."""
        return self.url_at(self.port)

    def url_at(self, port: int, user: str = "outlast", database: str = "outlast") -> str:
        """Return the URL with another port (a proxy's), user or database."""
        return f"postgresql://{user}:not-to-be-shown@127.0.0.1:{port}/{database}"

    @property
    def pid(self) -> int:
        """Return the postmaster."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and return when it answers."""
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*_with_us(), str(_found("postgres")), "-D", str(self.data), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=_user(),
                cwd="/",
                start_new_session=True,
            )
        waiting.wait_until(self._answers, f"PostgreSQL answers; see {self._folder / 'log'}", 30)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()[-2000:]
        try:
            self.admin("postgres").close()
        except psycopg.OperationalError:
            return False
        return True

    def admin(self, database: str = "outlast") -> psycopg.Connection:
        """Return a superuser's connection, to look behind the store."""
        if database == "outlast" and not self._has_database():
            database = "postgres"
        return psycopg.connect(self.url_at(self.port, "postgres", database), autocommit=True, connect_timeout=5)

    def _has_database(self) -> bool:
        with psycopg.connect(self.url_at(self.port, "postgres", "postgres"), autocommit=True) as admin:
            return admin.execute("SELECT FROM pg_database WHERE datname = 'outlast'").fetchone() is not None

    def empty(self) -> None:
        """Make the database as if it were new."""
        with self.admin() as admin:
            admin.execute("SELECT pg_terminate_backend(pid, 2000) FROM pg_stat_activity WHERE usename = 'outlast'")
            admin.execute("DROP SCHEMA IF EXISTS outlast CASCADE")

    @contextmanager
    def moved_away(self) -> Iterator[None]:
        """Have an empty database under the same address inside, and the one before again afterwards."""
        with self.admin("postgres") as admin:
            admin.execute("SELECT pg_terminate_backend(pid, 2000) FROM pg_stat_activity WHERE datname = 'outlast'")
            admin.execute("ALTER DATABASE outlast RENAME TO kept")
            admin.execute("CREATE DATABASE outlast OWNER outlast")
        try:
            yield
        finally:
            with self.admin("postgres") as admin:
                admin.execute("DROP DATABASE outlast WITH (FORCE)")
                admin.execute("ALTER DATABASE kept RENAME TO outlast")

    def waiting_for_locks(self) -> int:
        """Return how many sessions of the store wait for one."""
        with self.admin() as admin:
            asked = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'outlast' AND wait_event_type = 'Lock'"
            row = admin.execute(asked).fetchone()
        assert row is not None
        return int(row[0])

    def give(self, path: Path) -> None:
        """Make a folder the server's own."""
        _give(path)

    def backends(self) -> list[int]:
        """Return every process of the server, the postmaster first."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [self.pid, *map(int, children)]

    def freeze(self) -> None:
        """Stop every process of it: its sockets stay open and nobody answers."""
        for pid in self.backends():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        for pid in reversed(self.backends()):
            os.kill(pid, signal.SIGCONT)

    def crash(self) -> None:
        """Kill every process of it at once."""
        assert self._process is not None
        for pid in self.backends():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait(10)

    def restart(self) -> None:
        """Start it again after a crash, on the same port."""
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        self.start()

    def keep(self) -> None:
        """Crash it, keep its folder as it is then, and start it again."""
        self.crash()
        shutil.copytree(self.data, self._kept)
        _give(self._kept)
        self.restart()

    def go_back(self, *, new_timeline: bool) -> None:
        """Be what was kept: put back as it is, or recovered on a new timeline, as a standby or an archive is."""
        if self._process is not None and self._process.poll() is None:
            self.crash()
        shutil.rmtree(self.data)
        shutil.copytree(self._kept, self.data)
        if new_timeline:
            self._settings["restore_command"] = "false"
            (self.data / "recovery.signal").touch()
        self.data.chmod(0o700)
        _give(self.data)
        self.restart()
        waiting.wait_until(self._takes_writes, "PostgreSQL takes writes", 30)

    def _takes_writes(self) -> bool:
        with self.admin("postgres") as admin:
            return admin.execute("SELECT pg_is_in_recovery()").fetchone() == (False,)

    @property
    def _kept(self) -> Path:
        return self._folder / "kept"

    def close(self) -> None:
        """End it and remove its folder."""
        assert self._process is not None
        if self._process.poll() is None:
            self.thaw()
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(10)
        shutil.rmtree(self._folder, ignore_errors=True)
