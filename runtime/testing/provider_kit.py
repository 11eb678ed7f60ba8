"""What every kit of a sandbox provider begins with: the provider under test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from runtime.ports import SandboxProvider

MakeProvider = Callable[[], SandboxProvider]


class ProviderKit:
    """The fixtures; see `sandbox_kit.py` for how a kit is used."""

    @pytest.fixture
    def make_provider(self) -> MakeProvider:
        """Return what makes the provider under test: picklable; called twice, both see the same sandboxes."""
        raise NotImplementedError

    @pytest.fixture
    async def provider(self, make_provider: MakeProvider) -> AsyncIterator[SandboxProvider]:
        """Yield the provider; whatever exists afterwards is destroyed."""
        provider = make_provider()
        yield provider
        for key in await provider.list():
            await provider.destroy(key)
