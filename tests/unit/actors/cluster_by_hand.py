"""Nodes that are OS threads of this process: what is sent to one runs as if it were on that node's host."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from ray.exceptions import WorkerCrashedError
from unit.actors import host_provider
from unit.actors.host_provider import HERE, HostProvider

from actors.errands import Errands
from actors.everywhere import Everywhere
from runtime.engine.placing import Node
from runtime.settings import Settings


class NodesByHand:
    """`place` puts nodes on hosts; a silent one never answers, a broken one loses what it is sent."""

    def __init__(self) -> None:
        self.seen: list[Node] = []
        self.silent: set[str] = set()
        self.broken: set[str] = set()
        self.sent: list[str] = []  # to which node, in order
        self.settings = Settings(providers=host_provider.PROVIDERS)
        host_provider.SANDBOXES.clear()

    def place(self, **hosts: str) -> None:
        """Add nodes: name and host."""
        self.seen += [Node(node_id=name, hosts=frozenset({host})) for name, host in hosts.items()]

    def errands(self) -> Errands:
        return Errands(self.settings, "deployment-1", self._on)

    def everywhere(self) -> Everywhere:
        """Return the providers as a supervisor on host `home` has them."""
        provider = HostProvider(self.settings, "deployment-1")
        return Everywhere({"hosted": provider}, lambda: self.seen, self.errands())

    def _on(self, node_id: str, work: Callable[..., Any]) -> _Task:
        self.sent.append(node_id)
        return _Task(self, node_id, work)


class _Task:
    """As Ray's remote function: `remote` returns what can be awaited."""

    def __init__(self, nodes: NodesByHand, node_id: str, work: Callable[..., Any]) -> None:
        self._nodes = nodes
        self._node_id = node_id
        self._work = work

    def remote(self, *args: Any) -> _Answer:
        return _Answer(self._nodes, self._node_id, lambda: self._work(*args))


class _Answer:
    def __init__(self, nodes: NodesByHand, node_id: str, work: Callable[[], Any]) -> None:
        self._nodes = nodes
        self._node_id = node_id
        self._work = work

    def __await__(self) -> Iterator[Any]:
        return self._done().__await__()

    async def _done(self) -> Any:
        if self._node_id in self._nodes.silent:
            await asyncio.Event().wait()
        if self._node_id in self._nodes.broken:
            raise WorkerCrashedError
        (host,) = next(node.hosts for node in self._nodes.seen if node.node_id == self._node_id and node.hosts)
        return await asyncio.to_thread(self._there, host)

    def _there(self, host: str) -> Any:
        HERE.set(host)  # of this OS thread's context alone
        return self._work()
