"""`outlast backup` and `outlast restore`: a store in one file, while it is served, and back.

A backup holds the store: records, logs, transcripts. Not in it, because they are files of their own or secrets: the
workspaces and homes of threads, the journals of runs that go on, tokens. The key that signs sessions and seals cursors
is the data directory's (`serve_app/tokens.py`) and not in it either: restored in another one, browsers sign in anew.

A restore is a loss that is known (P10): the store becomes as it was at the backup, and a generation later. It is made
whole beside what is there before that is touched.
"""

from __future__ import annotations

import importlib.metadata
import os
import tempfile
from collections.abc import Iterable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from actors.compose import is_postgres, load_attribute, store_path
from runtime.core.generations import next_generation
from runtime.engine.clock import SystemClock
from runtime.errors import InputInvalid, StoreError, StoreFull, StoreRefused
from runtime.settings import Settings
from runtime.stores.backup_file import Backup, BackupHeader, Contents, Row, write_backup
from serve_app.instance import data_directory
from serve_app.store_setup import check_store_settings, deployment_mark


def back_up(settings: Settings, path: Path, *, force: bool) -> dict[str, Any]:
    """Write the store into a new file at `path`; return what it holds. With `force` one that is there is replaced.

    Raises InputInvalid, StoreError; then `path` is as it was."""
    if path.exists() and not force:
        raise _there(path)
    check_store_settings(settings)
    header, rows = _open_rows(settings)
    with closing(rows):
        try:
            return _write(path, header, rows, force=force)
        except OSError as error:
            raise StoreFull(f"{path} cannot be written: {error.strerror}. There is no backup.") from error


def _write(path: Path, header: BackupHeader, rows: Iterable[Row], *, force: bool) -> dict[str, Any]:
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # of mode 600, and nobody else's
    private = Path(name)
    try:
        with os.fdopen(fd, "wb") as file:
            write_backup(file, header, rows)
            file.flush()
            os.fsync(file.fileno())
        contents = check(private)  # read back whole: what cannot be restored is no backup
        _put(private, path, force=force)
    finally:
        private.unlink(missing_ok=True)
    return contents


def check(path: Path) -> dict[str, Any]:
    """Read a backup whole; return what it holds. Raises StoreRefused if it is damaged or none."""
    with closing(Backup(path)) as backup:
        return told(backup.check())


def told(contents: Contents) -> dict[str, Any]:
    """Return what is said of a backup."""
    facts: dict[str, Any] = msgspec.to_builtins(contents)
    return facts


def restore(settings: Settings, path: Path, *, force: bool) -> dict[str, Any]:
    """Let the store be as it is in the backup at `path`; return what it holds, and `replaced`: where the one before is.

    With `force` a store that has runs is replaced. Raises InputInvalid, InstanceError, StoreError; then the store is as
    it was."""
    check_store_settings(settings)
    with closing(Backup(path)) as backup:
        contents = told(backup.check())
        with data_directory(settings) as here:
            _refuse_other(here, backup.header.deployment_id, path)
            put = _restore_postgres if is_postgres(here) else _restore_sqlite
            return contents | put(here, backup, force)


def _refuse_other(settings: Settings, deployment: str, path: Path) -> None:
    mark = deployment_mark(settings)
    if mark.exists() and (here := mark.read_text().strip()) != deployment:
        raise StoreRefused(
            f"{path} is of deployment {deployment}, and {settings.data_path} is deployment {here}'s: each knows its "
            "sandboxes by that name. Restore into the data directory that it was made from, or into a new one "
            "(OUTLAST_DATA_DIR)."
        )


def _restore_sqlite(settings: Settings, backup: Backup, force: bool) -> dict[str, Any]:
    place = store_path(settings)
    made = place.with_name(f".{place.name}.restoring")
    sqlite = partial(_attribute, "sqlite_backup")
    sqlite("refuse_served")(place)
    before = _refuse_full(place, force)
    generation = next_generation(max(backup.header.generation, before), SystemClock().wall_ms())
    try:
        sqlite("fill_store")(made, backup.header.deployment_id, generation, backup.rows())
        _note_deployment(settings, backup.header.deployment_id)  # first: without it the store would be a stranger's
        replaced = sqlite("put_in_place")(made, place, generation)
        _sync_folder(place.parent)
    except OSError as error:
        raise StoreFull(f"{place} cannot be put in place: {error.strerror}.") from error
    finally:
        sqlite("remove")(made)
    return {"newGeneration": generation, "replaced": None if replaced is None else str(replaced)}


def _refuse_full(place: Path, force: bool) -> int:
    """Raise StoreRefused if a store with runs would be replaced that should not be; return its generation."""
    try:
        runs, generation = _attribute("sqlite_backup", "holds")(place)
    except StoreError as error:
        if not force:
            raise StoreRefused(f"{error.message} To replace it: --force, which keeps it beside the new one.") from error
        return 0  # it cannot be read: a reason to restore
    if runs and not force:
        raise StoreRefused(f"{place} has {runs} run(s), which a restore replaces. Back it up first, then use --force.")
    return int(generation)


def _restore_postgres(settings: Settings, backup: Backup, force: bool) -> dict[str, Any]:
    fill = _attribute("postgres_backup", "fill_store")
    now_ms = SystemClock().wall_ms()
    generation = fill(_address(settings), backup.header, settings.shards, now_ms, backup.rows(), force=force)
    _note_deployment(settings, backup.header.deployment_id)
    return {"newGeneration": generation, "replaced": None}


def _note_deployment(settings: Settings, deployment: str) -> None:
    mark = deployment_mark(settings)
    if not mark.exists():
        mark.write_text(deployment + "\n")


def _open_rows(settings: Settings) -> tuple[BackupHeader, Any]:
    mark = deployment_mark(settings)
    deployment = mark.read_text().strip() if mark.exists() else None
    made = (deployment, SystemClock().wall_ms(), importlib.metadata.version("outlast"))
    if is_postgres(settings):
        header, rows = _attribute("postgres_backup", "read_store")(_address(settings), settings.shards, *made)
    else:
        header, rows = _attribute("sqlite_backup", "read_store")(store_path(settings), *made)
    return header, rows


def _address(settings: Settings) -> Any:
    return _attribute("postgres_connection", "Address")(settings.store)


def _put(private: Path, path: Path, *, force: bool) -> None:
    """Give the file its name, which nobody else's loses it by."""
    if force:
        private.replace(path)
    else:
        try:
            os.link(private, path)
        except FileExistsError:
            raise _there(path) from None
    _sync_folder(path.parent)


def _there(path: Path) -> InputInvalid:
    return InputInvalid(f"{path} is there already. Choose another name, or --force to replace it.", code="file_exists")


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system that cannot do it
            os.fsync(fd)
    finally:
        os.close(fd)


def _attribute(module: str, name: str) -> Any:
    """Return what only one kind of store needs, with what that imports."""
    return load_attribute(f"runtime.stores.{module}:{name}", "store")
