"""Whether a thread's workspace in a container is there, whole: what its marks say. Runs inside, as its root.

A volume cannot be renamed into its place, so what is filled there is told from what is there by two files, in a folder
that no agent can reach, on the volume of baselines, which lives as long as the workspace:

    lock        held while it is filled, by whoever fills; gone with that process, however it ends
    filling     from before the first byte to the last
    made        it is there: never filled again, and never emptied

With neither, a workspace that holds anything, or in which a run has begun, is there too: it is older than the marks.
One that is `filling` and whose lock is free is a half one: whoever comes next, to fill it or to launch, empties it.
Files in it are the agent's, and only its user can remove or make them: root here may not (see `isolated.py`).
"""

# ruff: noqa: PTH101, PTH103, PTH104, PTH106, PTH108, PTH110, PTH123, PTH208
from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from runtime.sandboxes import baseline
from runtime.sandboxes.isolated import become_agent

TYPE_CHECKING = False  # as in `recorder.py`
if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = "_workspace"  # no name of a run has an underscore without two hex digits behind it
LOCK, FILLING, MADE = "lock", "filling", "made"
SAID_BYTES = 1000


class Marks:
    """The marks of one workspace; `kept` is the folder of its thread's baselines."""

    def __init__(self, kept: str, workspace: str) -> None:
        self.workspace = workspace
        self._kept = kept
        self._folder = f"{kept}/{FOLDER}"
        self._lock = -1

    def made(self) -> bool:
        """Return whether it is marked as there."""
        return os.path.exists(f"{self._folder}/{MADE}")

    def take(self) -> bool:
        """Take the lock, for the life of this process and its children, if it is free. Raises OSError."""
        if self._lock < 0:
            os.makedirs(self._folder, 0o700, exist_ok=True)
            os.chmod(self._kept, 0o700)
            self._lock = os.open(f"{self._folder}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def there(self) -> bool:
        """Return whether it is there, whoever made it. Whoever asks holds the lock."""
        if self.made():
            return True
        if os.path.exists(f"{self._folder}/{FILLING}"):
            return False
        return bool(baseline.taken(self._kept) or os.listdir(self.workspace))

    def begin(self) -> None:
        """Note that it is filled from now on."""
        self._note(FILLING)

    def end(self) -> None:
        """Note that it is there, whole."""
        os.rename(f"{self._folder}/{FILLING}", f"{self._folder}/{MADE}")
        self._sync()

    def settle(self) -> None:
        """Make it one that is there, before an agent is launched in it: a half one becomes an empty one.

        Raises OSError if that cannot be done, or it is being filled."""
        if self.made():
            return
        with suppress(OSError):  # a full disk has no room for marks; who fills has made them before
            if self.take() and not os.path.exists(f"{self._folder}/{FILLING}"):
                self._note(MADE)
                return
        if os.path.exists(f"{self._folder}/{FILLING}"):
            if not self.take():
                raise BlockingIOError("the workspace is being filled")
            as_agent(lambda: empty(self.workspace))
            self.end()

    def _note(self, name: str) -> None:
        os.close(os.open(f"{self._folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._sync()

    def _sync(self) -> None:
        fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def as_agent(work: Callable[[], None]) -> None:
    """Do something in a child that is the agent's user. Raises OSError with what stood against it."""
    pipe, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            become_agent()
            work()
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - the parent raises it
            os.write(told, (str(error) or type(error).__name__).encode(errors="replace")[:SAID_BYTES])
        finally:
            os._exit(1)
    os.close(told)
    with open(pipe, "rb") as file:
        said = file.read()
    if os.waitpid(pid, 0)[1]:
        raise OSError(said.decode(errors="replace") or "it was ended")


def empty(folder: str) -> None:
    """Remove what is in a folder, following no link. Raises OSError."""
    with os.scandir(folder) as found:
        entries = list(found)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            empty(entry.path)
            os.rmdir(entry.path)
        else:
            os.unlink(entry.path)
