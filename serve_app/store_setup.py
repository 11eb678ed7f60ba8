"""Set-up of the store, by `outlast serve` and nobody else (P12): checked, made once, brought to this version.

The deployment's id lies in the store, and in `DATA_DIR/deployment` as well: a store that was lost is not silently
replaced by an empty one, nor by another deployment's. A data directory that is new takes the id of the database it is
given, so that a whole cluster can be replaced on one store.
"""

from __future__ import annotations

import logging
import uuid
from pathlib import Path

from actors.compose import is_postgres, load_attribute, open_store, store_path
from runtime.engine.clock import SystemClock
from runtime.errors import InputInvalid, OutlastError, StoreRefused
from runtime.settings import Settings

log = logging.getLogger("outlast.serve")

POSTGRES = "runtime.stores.postgres"


def examine(settings: Settings) -> tuple[bool, str]:
    """Return whether the store answers, is ours and outlives a loss of power; and in words what is or what to do."""
    try:
        check_store_settings(settings)
        if not is_postgres(settings):
            return True, f"{store_path(settings)}, synchronous=FULL"
        found = load_attribute(f"{POSTGRES}_durability:examine", "store")
        sound, said = found(settings.store, settings.shards)
    except OutlastError as error:
        return False, error.message
    else:
        return bool(sound), str(said)


def check_store_settings(settings: Settings) -> None:
    """Raise InputInvalid for a store or a number of shards that cannot be. Never quotes the URL, with its password."""
    if is_postgres(settings):
        load_attribute(f"{POSTGRES}_connection:Address", "store")(settings.store)
        return
    if settings.store != "sqlite":
        message = "OUTLAST_STORE is `sqlite` or a URL that begins with postgresql://."
        raise InputInvalid(message, code="setting_invalid", field="store")
    if settings.shards != 1:
        message = "OUTLAST_SHARDS: a SQLite store has exactly 1 shard; more need OUTLAST_STORE=postgresql://... (P12)."
        raise InputInvalid(message, code="setting_invalid", field="shards")


def prepare_store(settings: Settings) -> str:
    """Make the store, or bring an old one to this version; return the deployment id. Raises StoreRefused."""
    mark = deployment_mark(settings)
    return (_prepare_postgres if is_postgres(settings) else _prepare_sqlite)(settings, mark)


def deployment_mark(settings: Settings) -> Path:
    """Return the file that says whose data directory it is."""
    return settings.data_path / "deployment"


def raise_generation(settings: Settings) -> int:
    """Say that the store was restored, and may lack chunks that clients have seen (P10); return its new generation.

    The instance may run or not. Raises StoreRefused, StoreUnavailable."""
    store = open_store(settings)
    try:
        return store.raise_generation(SystemClock().wall_ms())
    finally:
        store.close()


def _new_id() -> str:
    return uuid.uuid4().hex[:16]


def _prepare_postgres(settings: Settings, mark: Path) -> str:
    address = load_attribute(f"{POSTGRES}_connection:Address", "store")(settings.store)
    marked = mark.read_text().strip() if mark.exists() else None
    if marked is not None and load_attribute(f"{POSTGRES}_setup:find_store", "store")(address) is None:
        raise StoreRefused(
            f"The database {address} holds no store, and {mark} says that this data directory belongs to one, "
            f"deployment {marked}. Bring it back from a backup, or mend OUTLAST_STORE; to begin anew, use another "
            f"OUTLAST_DATA_DIR."
        )
    create_store = load_attribute(f"{POSTGRES}_setup:create_store", "store")
    meta = create_store(address, marked or _new_id(), settings.shards, adopt=marked is None)
    deployment: str = meta.deployment_id
    if marked is None:
        mark.write_text(deployment + "\n")
    sound, said = load_attribute(f"{POSTGRES}_durability:examine", "store")(settings.store, settings.shards)
    if not sound:
        log.warning("the store breaks a promise (I2): %s", said)
    return deployment


def _prepare_sqlite(settings: Settings, mark: Path) -> str:
    path = store_path(settings)
    making = path.with_name(f".{path.name}.making")
    if mark.exists() and making.exists() and not path.exists():
        making.rename(path)  # a first start was interrupted at its very last step
    if mark.exists() and not path.exists():
        raise StoreRefused(
            f"{path} is gone, and {mark} says that there was one. Bring it back from a backup; to begin anew, remove "
            f"{mark} too."
        )
    if not mark.exists() and path.exists():
        raise StoreRefused(f"{path} is there without {mark}: it belongs to another data directory.")
    deployment = mark.read_text().strip() if mark.exists() else _new_id()
    create_store = load_attribute("runtime.stores.sqlite_setup:create_store", "store")
    if mark.exists():
        create_store(path, deployment, settings.shards)
        return deployment
    # The first start: a store under a private name first, so that a crash in here leaves nothing half made.
    for leftover in settings.data_path.glob(f"{making.name}*"):
        leftover.unlink()
    create_store(making, deployment, settings.shards)
    mark.write_text(deployment + "\n")
    making.rename(path)
    return deployment
