"""A node provider of Ray's autoscaler that adds raylets on this machine, with room for run actors.

Ray's own fake provider, which cannot give a node the logical resource `memory`. For `type: external` in the
autoscaler's configuration; the autoscaler's monitor imports it, so it must be on its PYTHONPATH.
"""

from __future__ import annotations

import json
from typing import Any

from ray._private.node import Node
from ray._private.parameter import RayParams
from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider

OBJECT_STORE_BYTES = 100 << 20


class HereProvider(FakeMultiNodeProvider):
    """Starts a raylet for each node that is asked for."""

    def _create_node_with_resources_and_labels(
        self, node_config: Any, tags: dict[str, str], count: int, resources: dict[str, Any], labels: Any
    ) -> None:
        del node_config, count
        with self.lock:
            node_id = str(self._next_hex_node_id())  # type: ignore[no-untyped-call]
            parameters = RayParams(
                min_worker_port=0,
                max_worker_port=0,
                dashboard_port=None,
                dashboard_agent_listen_port=0,
                num_cpus=resources.get("CPU", 1),
                memory=resources["memory"],
                object_store_memory=OBJECT_STORE_BYTES,
                resources={},
                labels=labels,
                node_ip_address="127.0.0.1",
                redis_address=self._gcs_address,
                gcs_address=self._gcs_address,
                env_vars={
                    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": node_id,
                    "RAY_CLOUD_INSTANCE_ID": node_id,
                    "RAY_NODE_TYPE_NAME": tags["ray-user-node-type"],
                    "RAY_OVERRIDE_RESOURCES": json.dumps({}),
                },
            )
            node = Node(parameters, head=False, shutdown_at_exit=False, spawn_reaper=False)
            known: Any = {"ray-node-type": "worker", "ray-node-name": node_id, "ray-node-status": "up-to-date", **tags}
            nodes: dict[str, Any] = self._nodes
            nodes[node_id] = {"tags": known, "node": node}
