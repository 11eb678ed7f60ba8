"""The `local` provider: a sandbox is a folder and a tree of processes on this machine.

    <root>/<encoded run id>/
        sandbox.json        its key and its workspace
        journal, journal.launch, journal.exit, journal.err          see `recorder.py`
        tools/                                                      calls of host tools: see `tool_server.py`
    <workspaces>/<encoded thread key>/                              outlives its sandboxes (P18)
    <homes>/<encoded thread key>/                                   so does the agent's home, if it gets one
    <baselines>/<encoded thread key>/<encoded run id>               how it was when a run began: see `baseline.py`

A folder is made whole under a `_new` name and renamed, so a sandbox exists or does not. A destroy renames it to `_gone`
first: from then on nobody can launch in it, and a destroy that was interrupted is found and completed by the next one.
In an encoded name an underscore is followed by two hex digits, so these names are nobody's.

`isolated_agent` is False: the agent is the same user as we are, and is trusted as much (P16).
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import time
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from runtime.core.launch import AgentExit, decode_launch
from runtime.core.names import folder_name
from runtime.core.record import Struct
from runtime.core.workspace import WorkspaceSource
from runtime.errors import JournalUnavailable, LaunchFailed, SandboxLost, SandboxUnreachable, WorkspaceHeld
from runtime.ports import Capabilities, FileChange, LaunchSpec, WholeDiff
from runtime.sandboxes import baseline, spool, tool_server
from runtime.sandboxes.command import run_command
from runtime.sandboxes.filling import make_workspace
from runtime.sandboxes.follow import JournalFollower, Watch
from runtime.sandboxes.launcher import start_recorder
from runtime.sandboxes.local_files import LocalFiles
from runtime.sandboxes.recorder import MARKER
from runtime.sandboxes.recording import JOURNAL, Recording
from runtime.sandboxes.strays import end_sandbox

DESTROY_PATIENCE_S = 1.0  # P21: a cancel has one second with an answering driver
HELD_PATIENCE_S = 1.0  # for one try; whoever asks tries again
HELD_LOOK_S = 0.02
KILL_PATIENCE_S = 5.0  # the exit is worth waiting for: the recorder syncs the journal first
MACHINE_ID = Path("/etc/machine-id")
META = "sandbox.json"
SPOOL = "tools"
NEW, GONE, MADE_ID = "_new", "_gone", "_machine-id"


class Meta(Struct, frozen=True, kw_only=True):
    """What `sandbox.json` says."""

    key: str
    workspace: str
    home: str | None = None
    baselines: str | None = None  # the thread's folder of them


class LocalSandbox:
    """One sandbox of this machine (`runtime.ports.Sandbox`)."""

    def __init__(self, home: Path, meta: Meta) -> None:
        self.key = meta.key
        self.workspace = meta.workspace
        self.home = meta.home
        self._home = home
        self._baselines = meta.baselines
        self._opened: Recording | None = None
        taken = None if meta.baselines is None else f"{meta.baselines}/{meta.key.rpartition('/')[2]}"
        self._files = LocalFiles(meta.workspace, taken)

    async def launched(self) -> bool:
        """Return whether the launch file exists. Raises SandboxLost."""
        return self._recording() is not None

    async def launch(self, spec: LaunchSpec) -> None:
        """Launch, unless somebody has (P15). Raises LaunchFailed, SandboxLost."""
        if not await self.launched():
            if self._baselines is not None:
                run = self.key.rpartition("/")[2]
                await asyncio.to_thread(baseline.take, self.workspace, self._baselines, run, baseline.write)
            await asyncio.to_thread(start_recorder, spec, self._home / JOURNAL, self.workspace, self.key)
        recording = self._recording()
        if recording is not None:
            await JournalFollower(recording).wait_until_made()

    async def follow(self, start: int) -> AsyncGenerator[bytes, None]:
        """Yield the journal from `start` to its end. Raises JournalUnavailable, SandboxLost."""
        async with aclosing(JournalFollower(self._launched()).follow(start)) as pieces:
            async for piece in pieces:
                yield piece

    async def journal_id(self) -> str:
        """Return who recorded it, which is in the launch file (P5, P15). Raises JournalUnavailable, SandboxLost."""
        recorder = self._launched().recorder()
        if recorder is None:
            raise JournalUnavailable(f"The launch record of the sandbox {self.key} is not whole.")
        return f"{recorder.boot_id}/{recorder.pid}/{recorder.pid_started_at}"

    async def read_journal(self, start: int, size: int) -> bytes:
        """Return a stretch of the journal, by one short read. Raises JournalUnavailable, SandboxLost."""
        recording = self._launched()
        try:
            journal = recording.open_journal()
            try:
                return os.pread(journal, size, start)
            finally:
                os.close(journal)
        except OSError as error:
            raise JournalUnavailable(f"The journal cannot be read: {error}.") from error

    async def exit(self) -> AgentExit | None:
        """Return how the agent ended; None while it lives or before it was launched. Raises SandboxLost."""
        recording = self._recording()
        return None if recording is None else await JournalFollower(recording).look()

    async def stderr_tail(self, max_bytes: int) -> bytes:
        """Return the end of the agent's stderr; of a long one, only the last half megabyte or more is kept."""
        try:
            with (self._home / f"{JOURNAL}.err").open("rb") as file:
                data = file.read()  # bounded by the recorder; read whole, since it may be cut meanwhile
        except FileNotFoundError:
            return b""
        return data[max(0, len(data) - max_bytes) :]

    async def kill(self) -> None:
        """End all processes of the sandbox; the recorder records the exit. Raises SandboxUnreachable if some stay."""
        await asyncio.to_thread(_end, self._home, self.key, KILL_PATIENCE_S)

    async def exec(self, argv: Sequence[str], timeout_s: float) -> tuple[int, bytes]:
        """Run a short command in the workspace (see `run_command`)."""
        env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        env |= {"TERM": "dumb", MARKER: self.key, **({} if self.home is None else {"HOME": self.home})}
        return await asyncio.to_thread(run_command, argv, self.workspace, env, timeout_s)

    def tool_server(self) -> tuple[str, ...]:
        """Return the program, run by our own Python."""
        return (sys.executable, "-I", "-S", "-X", "utf8", tool_server.__file__, str(self._home / SPOOL))

    async def offer_tools(self, name: str, data: bytes) -> None:
        """Write an offer. Raises SandboxLost, SandboxUnreachable."""
        with self._spooling() as path:
            spool.offer(path, name, data)

    async def calls(self, known: Collection[str], wait_s: float) -> list[dict[str, Any]]:
        """Return the calls that wait, or wait for one. Raises SandboxLost, SandboxUnreachable."""
        deadline = time.monotonic() + wait_s
        with Watch() as watch, self._spooling() as path:
            watch.folder(f"{path}/{spool.CALLS}")
            while not (found := spool.waiting(path, known)) and time.monotonic() < deadline:
                await watch.wait()
            return found

    async def answer_call(self, call_id: str, data: bytes) -> None:
        """Write an answer. Raises SandboxLost, SandboxUnreachable."""
        with self._spooling() as path:
            spool.answer(path, call_id, data)

    @contextmanager
    def _spooling(self) -> Iterator[str]:
        if not self._home.exists():
            raise SandboxLost(f"The sandbox {self.key} does not exist.")
        try:
            yield str(self._home / SPOOL)
        except OSError as error:
            raise SandboxUnreachable(f"The tool calls of {self.key} cannot be reached: {error}.") from error

    async def file_changes(self, *, diffs: bool, settled: bool) -> list[FileChange]:
        """Return what changed since the last call; nothing where there is too much to look at (`file_watch.py`)."""
        return await self._files.changes(diffs=diffs, settled=settled)

    async def whole_diff(self, max_bytes: int, within_s: float) -> WholeDiff | None:
        """Return how the workspace differs from what it was at the launch; None if that cannot be said."""
        return await self._files.whole_diff(max_bytes, within_s)

    def _launched(self) -> Recording:
        recording = self._recording()
        if recording is None:
            raise JournalUnavailable(f"Nothing was launched in the sandbox {self.key}.")
        return recording

    def _recording(self) -> Recording | None:
        if not self._home.exists():
            raise SandboxLost(f"The sandbox {self.key} does not exist.")
        if self._opened is None:
            self._opened = Recording.open(self._home, self.key)
        return self._opened


class LocalProvider:
    """Sandboxes of this machine (`runtime.ports.SandboxProvider`), in folders that it is given."""

    name = "local"
    capabilities = Capabilities(isolated_agent=False, one_host=True, workspace_sources=True, host_tools=True)

    def __init__(
        self,
        root: Path,
        deployment: str,
        workspaces: Path,
        homes: Path | None = None,
        sources: Sequence[str] = (),
        baselines: Path | None = None,
    ) -> None:
        """Without `homes` an agent's HOME is what its environment says. `sources`: what a workspace may begin with.
        Without `baselines` nobody can tell later what a run changed."""
        self._root = root.absolute()
        self._workspaces = workspaces.absolute()
        self._homes = homes.absolute() if homes is not None else None
        self._sources = tuple(sources)
        self._baselines = baselines.absolute() if baselines is not None else None
        self._prefix = f"{self.name}/{_machine_id(self._root)}/{folder_name(deployment)}/"

    def key(self, run_id: str) -> str:
        """Return `local/<machine id>/<deployment>/<encoded run id>` (P17)."""
        return self._prefix + folder_name(run_id)

    def host(self, key: str) -> str:
        """Return `local/<machine id>`."""
        return "/".join(key.split("/")[:2])

    async def create(self, key: str, thread_key: str, source: WorkspaceSource | None = None) -> LocalSandbox:
        """Make the sandbox, or return the one with this key. Raises LaunchFailed, SandboxUnreachable, WorkspaceHeld."""
        home = self._home(key)
        try:
            return await asyncio.to_thread(self._create, home, key, folder_name(thread_key), source)
        except OSError as error:
            raise LaunchFailed(f"The sandbox's folder could not be made: {error}.") from error

    async def resume(self, key: str) -> LocalSandbox | None:
        """Return the sandbox, or None: this is its machine, its folder's parent is here, and it is not in it (P17)."""
        home = self._home(key)
        try:
            meta = _read_meta(home)
            if meta is None and not self._root.is_dir():
                raise SandboxUnreachable(f"{self._root} is not there; is its disk mounted?")
        except OSError as error:
            raise SandboxUnreachable(f"{home} cannot be read: {error}.") from error
        return None if meta is None else LocalSandbox(home, meta)

    async def destroy(self, key: str) -> None:
        """End its processes, then remove its folder; the workspace stays (P18). Raises SandboxUnreachable."""
        home = self._home(key)
        try:
            await asyncio.to_thread(_destroy, home, key)
        except OSError as error:
            raise SandboxUnreachable(f"{home} could not be removed: {error}.") from error

    async def list(self) -> list[str]:
        """Return the keys of what exists, half-destroyed ones too."""
        try:
            homes = [entry for entry in self._root.iterdir() if NEW not in entry.name and entry.is_dir()]
        except FileNotFoundError:
            return []
        keys = {meta.key for home in homes if (meta := _read_meta(home))}
        return sorted(key for key in keys if key.startswith(self._prefix))

    def _home(self, key: str) -> Path:
        name = key.removeprefix(self._prefix)
        if name == key or not name or "/" in name:
            raise SandboxUnreachable(f"The sandbox {key} is not of this machine and deployment ({self._prefix}).")
        return self._root / name

    def _create(self, home: Path, key: str, thread: str, source: WorkspaceSource | None) -> LocalSandbox:
        if (meta := _read_meta(home)) is None:
            workspace = self._workspaces / thread
            self._wait_for(workspace, key)
            make_workspace(workspace, source, self._sources, self._own_folders())
            baselines = None if self._baselines is None else str(self._baselines / thread)
            meta = Meta(key=key, workspace=str(workspace), home=self._agent_home(thread), baselines=baselines)
            fresh = home.with_name(f"{home.name}{NEW}{secrets.token_hex(4)}")  # of at most 200 and 12 characters
            fresh.mkdir(mode=0o700, parents=True)
            spool.make(str(fresh / SPOOL))
            _write_durably(fresh / META, msgspec.json.encode(meta))
            try:
                fresh.rename(home)
            except OSError:  # not empty: another one was first
                _remove(fresh)
                meta = _read_meta(home)
                if meta is None:
                    raise
        return LocalSandbox(home, meta)

    def _own_folders(self) -> tuple[Path, ...]:
        """Return where our data lies; if that is one folder, it is the data directory, with the store and the token."""
        folders = [one for one in (self._root, self._workspaces, self._homes, self._baselines) if one is not None]
        parents = {folder.parent for folder in folders}
        return (*folders, *(parents if len(parents) == 1 else ()))

    def _agent_home(self, thread: str) -> str | None:
        if self._homes is None:
            return None
        made = self._homes / thread
        made.mkdir(mode=0o700, parents=True, exist_ok=True)
        return str(made)

    def _wait_for(self, workspace: Path, key: str) -> None:
        """Return once no other sandbox has the workspace (P18): the one before is usually being destroyed right now.

        Raises WorkspaceHeld after HELD_PATIENCE_S. Blocks."""
        deadline = time.monotonic() + HELD_PATIENCE_S
        while (holder := self._holder(workspace, key)) is not None:
            if time.monotonic() >= deadline:
                raise WorkspaceHeld(
                    f"The workspace {workspace} is still held by the sandbox {holder}, whose processes could not be "
                    "ended yet."
                )
            time.sleep(HELD_LOOK_S)

    def _holder(self, workspace: Path, key: str) -> str | None:
        for home in self._root.iterdir() if self._root.is_dir() else ():
            meta = _read_meta(home) if NEW not in home.name and home.is_dir() else None
            if meta is not None and meta.workspace == str(workspace) and meta.key != key:
                return meta.key
        return None


def _destroy(home: Path, key: str) -> None:
    """Complete an earlier destroy, then do this one (see the module's docstring). Blocks.

    What a `create` of the key is still making goes first: it then fails, or has become the sandbox that goes next."""
    for fresh in home.parent.glob(f"{home.name}{NEW}*"):
        _remove(fresh)
    gone = home.with_name(home.name + GONE)
    while True:
        if gone.exists():
            _end(gone, key, DESTROY_PATIENCE_S)
            _remove(gone)
        try:
            home.rename(gone)
        except FileNotFoundError:
            return


def _end(home: Path, key: str, patience_s: float) -> None:
    """End the sandbox's processes. Raises SandboxUnreachable if some are still there. Blocks."""
    launch = None
    with suppress(FileNotFoundError):
        launch = decode_launch((home / f"{JOURNAL}.launch").read_bytes())
    if left := end_sandbox(key, launch, patience_s):
        raise SandboxUnreachable(f"Processes of {key} could not be ended: {sorted(pid for pid, _ in left)}.")


def _remove(home: Path) -> None:
    """Remove a sandbox's folder; what names its key goes last, so that a half-removed one can still be listed."""
    for parent, folders, files in os.walk(home, topdown=False):
        for name in (*folders, *files):
            path = Path(parent, name)
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            elif path != home / META:
                path.unlink(missing_ok=True)
    (home / META).unlink(missing_ok=True)
    home.rmdir()


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _read_meta(home: Path) -> Meta | None:
    try:
        return msgspec.json.decode((home / META).read_bytes(), type=Meta)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError:  # half made when the machine lost power: nobody was told of it
        return None


def _machine_id(root: Path) -> str:
    """Return this machine's id; one that is made once in `root` if the system has none."""
    with suppress(OSError):
        text = MACHINE_ID.read_text().strip()
        if text.isalnum() and text != "uninitialized":  # as an image that was never booted says
            return text
    root.mkdir(parents=True, exist_ok=True)
    made, fresh = root / MADE_ID, root / f"{MADE_ID}{secrets.token_hex(4)}"
    fresh.write_text(secrets.token_hex(16))
    with suppress(FileExistsError):
        made.hardlink_to(fresh)
    fresh.unlink()
    return made.read_text()
