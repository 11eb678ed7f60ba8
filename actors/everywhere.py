"""A provider as the supervisor needs it: it destroys a sandbox wherever that is (P17, P19).

What is bound to a host that this process is not on is destroyed from a node of that host, and is unreachable while
there is none. Everything else is the provider itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from actors import errands
from actors.nodes import Nodes, nodes_of
from runtime.errors import SandboxUnreachable
from runtime.ports import Sandbox, SandboxProvider
from runtime.settings import Settings


class Everywhere(Mapping[str, SandboxProvider]):
    """The providers by name."""

    def __init__(self, known: Mapping[str, SandboxProvider], nodes: Nodes, settings: Settings, deployment: str) -> None:
        self._known = known
        self._nodes = nodes
        self._settings = settings
        self._deployment = deployment

    def __getitem__(self, name: str) -> SandboxProvider:
        provider = self._known[name]
        if not provider.capabilities.one_host:
            return provider
        return _OnItsHost(name, provider, self._nodes, self._settings, self._deployment)

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class _OnItsHost:
    """One provider whose sandboxes are bound to hosts (`runtime.ports.SandboxProvider`)."""

    def __init__(self, name: str, provider: SandboxProvider, nodes: Nodes, settings: Settings, deployment: str) -> None:
        self.name = name
        self.capabilities = provider.capabilities
        self._provider = provider
        self._nodes = nodes
        self._settings = settings
        self._deployment = deployment

    def key(self, run_id: str) -> str:
        """Return the key of a sandbox here."""
        return self._provider.key(run_id)

    def host(self, key: str) -> str:
        """Return the host that the key names."""
        return self._provider.host(key)

    async def create(self, key: str, thread_key: str) -> Sandbox:
        """Make it here."""
        return await self._provider.create(key, thread_key)

    async def resume(self, key: str) -> Sandbox | None:
        """Find it here."""
        return await self._provider.resume(key)

    async def list(self) -> list[str]:
        """Return what is here."""
        return await self._provider.list()

    async def destroy(self, key: str) -> None:
        """Destroy it here, or from a node of its host. Raises SandboxUnreachable."""
        host = self._provider.host(key)
        if host == self._provider.host(self._provider.key("-")):
            await self._provider.destroy(key)
            return
        there = nodes_of(self._nodes.seen(), host)
        if not there:
            raise SandboxUnreachable(f"No node of {host} is there.")
        await errands.destroy(there[0], self._settings, self._deployment, self.name, key)
