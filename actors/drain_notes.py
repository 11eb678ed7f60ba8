"""Which nodes an instance drains, noted where every process of the cluster finds it: in the store of Ray's head.

A supervisor that is made anew goes on with the drains of the one before. A node's id is never another's, so a note that
is left behind says nothing of anybody.
"""

from __future__ import annotations

from typing import Any

from ray.experimental import internal_kv

# Ray's own libraries use these; they carry no types.
_kv: Any = internal_kv


def keep_drain(namespace: str, node_id: str, deadline_ms: int) -> None:
    """Note that the node is drained until then (UTC ms). Blocks."""
    _kv._internal_kv_put(f"{_prefix(namespace)}{node_id}", str(deadline_ms), overwrite=True)  # noqa: SLF001 - its name


def kept_drains(namespace: str) -> dict[str, int]:
    """Return what is noted: node id -> deadline (UTC ms). Blocks."""
    prefix = _prefix(namespace)
    keys = [key.decode() for key in _kv._internal_kv_list(prefix)]  # noqa: SLF001 - its name
    values = {key: _kv._internal_kv_get(key) for key in keys}  # noqa: SLF001 - its name
    return {key.removeprefix(prefix): int(value) for key, value in values.items() if value is not None}


def _prefix(namespace: str) -> str:
    return f"outlast:drain:{namespace}:"
