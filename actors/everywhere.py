"""A provider as the supervisor needs it: it lists and destroys sandboxes wherever they are (P17, P19, P22).

What is bound to a host that this process is not on is seen and destroyed from a node of that host, and is unreachable
while there is none. Everything else is the provider itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

from actors.errands import Errands
from runtime.core.workspace import WorkspaceSource
from runtime.engine.placing import Node
from runtime.errors import AgentError, SandboxUnreachable
from runtime.ports import Sandbox, SandboxProvider

log = logging.getLogger("outlast.supervisor")


class Everywhere(Mapping[str, SandboxProvider]):
    """The providers by name."""

    def __init__(
        self, known: Mapping[str, SandboxProvider], seen: Callable[[], Sequence[Node]], errands: Errands
    ) -> None:
        """`seen` returns the living nodes."""
        self._known = known
        self._seen = seen
        self._errands = errands

    def __getitem__(self, name: str) -> SandboxProvider:
        provider = self._known[name]
        if not provider.capabilities.one_host:
            return provider
        return _OnItsHost(name, provider, self._seen, self._errands)

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class _OnItsHost:
    """One provider whose sandboxes are bound to hosts (`runtime.ports.SandboxProvider`)."""

    def __init__(
        self, name: str, provider: SandboxProvider, seen: Callable[[], Sequence[Node]], errands: Errands
    ) -> None:
        self.name = name
        self.capabilities = provider.capabilities
        self._provider = provider
        self._seen = seen
        self._errands = errands

    def key(self, run_id: str) -> str:
        """Return the key of a sandbox here."""
        return self._provider.key(run_id)

    def host(self, key: str) -> str:
        """Return the host that the key names."""
        return self._provider.host(key)

    async def create(self, key: str, thread_key: str, source: WorkspaceSource | None = None) -> Sandbox:
        """Make it here."""
        return await self._provider.create(key, thread_key, source)

    async def resume(self, key: str) -> Sandbox | None:
        """Find it here."""
        return await self._provider.resume(key)

    async def list(self) -> list[str]:
        """Return what is here and on every other host that says so in time; all are asked at once."""
        here = await asyncio.to_thread(_here, self._provider)
        # One for all that reach the same, and none that reaches what this one does.
        able = {node.hosts: node.node_id for node in self._seen() if node.takes and node.hosts}
        others = [node_id for hosts, node_id in able.items() if hosts and here not in hosts]
        asked = [self._provider.list(), *(self._errands.keys(node_id, self.name) for node_id in others)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        keys: dict[str, None] = {}  # each once, in order
        for who, told in zip(["this node", *others], found, strict=True):
            if isinstance(told, BaseException):
                log.warning("provider %s: %s does not say what there is: %s", self.name, who, told)
            else:
                keys |= dict.fromkeys(told)
        return [*keys]

    async def destroy(self, key: str) -> None:
        """Destroy it here, or from a node of its host. Raises SandboxUnreachable."""
        if self._provider.host(key) == await asyncio.to_thread(_here, self._provider):
            await self._provider.destroy(key)
            return
        await self._errands.destroy(node_of(self._provider, key, self._seen()), self.name, key)


def node_of(provider: SandboxProvider, key: str, seen: Sequence[Node]) -> str:
    """Return the id of a node among `seen` that reaches the sandbox. Raises SandboxUnreachable if there is none."""
    host = provider.host(key) if provider.capabilities.one_host else None
    there = next((one.node_id for one in seen if one.takes and one.reaches(host)), None)
    if there is None:
        raise SandboxUnreachable(f"No node of {host or 'this instance'} is there.")
    return there


def _here(provider: SandboxProvider) -> str | None:
    """Return the host of what the provider makes here; None if it makes nothing here. May ask an engine, and block."""
    try:
        return provider.host(provider.key("-"))
    except AgentError:
        return None
