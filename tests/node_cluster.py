"""Several Ray nodes on this machine, each a raylet with its own workers: what can be lost one by one.

They share the machine, so every node reaches every `local` sandbox. The raylets are children of this process: one that
is killed and not waited for stays a zombie, and its workers, which ask whether its process id is alive, live on.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Mapping
from typing import Any

import leftovers
from processes import command_line, kill, wait_dead
from waiting import wait_until

from runtime import process
from runtime.process import ProcessIdentity

NODE = "OUTLAST_TEST_NODE"
OBJECT_STORE_BYTES = 100 << 20
ROOM = 64 << 20
SLOTS = 12
GONE_S = 30.0


class RayNode:
    """One node; everything of it carries its name in NODE."""

    def __init__(self, name: str, node: Any) -> None:
        self.name = name
        self.node_id = str(node.node_id)
        self._node = node
        (raylet,) = node.all_processes["raylet"]
        found = process.identify(raylet.process.pid)
        assert found is not None
        self.raylet = found

    def processes(self, title: str = "") -> list[ProcessIdentity]:
        """Return its living processes whose command line begins so; agents carry nothing of it."""
        pids = leftovers.carrying(NODE, self.name)
        return [who for pid in pids if command_line(pid).startswith(title) and (who := process.identify(pid))]

    def lose(self) -> None:
        """SIGKILL its raylet; its workers notice and go by themselves."""
        workers = self.processes("ray::")
        self._node.kill_raylet(check_alive=False)
        wait_dead(workers, GONE_S)

    def lose_raylet_only(self) -> None:
        """SIGKILL its raylet and leave the zombie: its workers do not notice."""
        kill(self.raylet)

    def pause(self) -> list[ProcessIdentity]:
        """SIGSTOP everything of it; return that."""
        everything = self.processes()
        for who in everything:
            process.send(who, signal.SIGSTOP)
        return everything


class NodeCluster:
    """A head and more nodes; `close` ends what is left of them."""

    def __init__(self, mark: str, env: Mapping[str, str], head_slots: int = SLOTS) -> None:
        """`mark` names this cluster's nodes on this machine; `env` is what they run in."""
        from ray.cluster_utils import Cluster  # noqa: PLC0415 - it reads the environment

        self._mark = mark
        self._temp_dir = f"/tmp/outlast-{mark}"
        self._env = dict(env)
        self._cluster: Any = Cluster()
        self.nodes: list[RayNode] = []
        config = {"num_workers_soft_limit": 300, "worker_niceness": 0}
        self.head = self.add(head_slots, _system_config=config, include_dashboard=False, temp_dir=self._temp_dir)
        self.address = str(self._cluster.address)

    def add(self, slots: int = SLOTS, env: Mapping[str, str] | None = None, **options: Any) -> RayNode:
        """Add a node with room for so many run actors."""
        name = f"{self._mark}-{len(self.nodes)}"
        options |= {"num_cpus": 2, "memory": slots * ROOM, "object_store_memory": OBJECT_STORE_BYTES}
        environment = {**self._env, **(env or {}), NODE: name}
        kept = dict(os.environ)
        os.environ.update(environment)
        try:
            node = RayNode(name, self._cluster.add_node(wait=False, **options))
        finally:
            os.environ.clear()
            os.environ.update(kept)
        self.nodes.append(node)
        return node

    def remove(self, node: RayNode) -> None:
        """End every process of a node."""
        for who in node.processes():
            process.send(who, signal.SIGKILL)
        wait_until(lambda: not node.processes(), f"the end of {node.name}", GONE_S)
        self.nodes.remove(node)

    def node(self, node_id: str) -> RayNode:
        """Return the node with that id."""
        (found,) = (node for node in self.nodes if node.node_id == node_id)
        return found

    def close(self) -> None:
        """End every process of every node."""
        for node in self.nodes:
            for who in node.processes():
                process.send(who, signal.SIGKILL)
        self._cluster.shutdown()
        wait_until(lambda: not any(node.processes() for node in self.nodes), "the end of every node", GONE_S)
        shutil.rmtree(self._temp_dir, ignore_errors=True)
