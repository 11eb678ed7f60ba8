"""Makes the supervisor of an instance on a node that is named: `move_supervisor.py RAY_ADDRESS NODE_ID`."""

from __future__ import annotations

import sys
from typing import Any

import ray

from actors import supervisor_actor
from actors.calls import find, kill
from actors.names import SUPERVISOR
from runtime.settings import load


def move(address: str, node_id: str) -> None:
    """Kill the supervisor, and make another with the settings of this process's environment."""
    settings = load()
    options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    ray.init(address=address, namespace=settings.namespace, **options)
    deployment = (settings.data_path / "deployment").read_text().strip()
    head: Any = next(row for row in ray.nodes() if "node:__internal_head__" in row["Resources"])  # type: ignore[no-untyped-call]
    if (old := find(SUPERVISOR, settings.namespace)) is not None:
        kill(old)
    supervisor_actor.create(settings, deployment, str(head["NodeID"]), node_id)
    ray.shutdown()


if __name__ == "__main__":
    move(sys.argv[1], sys.argv[2])
