"""The `local` provider passes the kit."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from leftovers import carrying
from own_deployment import DEPLOYMENT

from runtime.sandboxes.local import LocalProvider
from runtime.testing.provider_kit import MakeProvider
from runtime.testing.sandbox_kit import SandboxKit
from runtime.testing.sources_kit import SourcesKit
from runtime.testing.tool_calls_kit import ToolCallsKit


class TestLocalProvider(SandboxKit):
    @pytest.fixture
    def make_provider(self, tmp_path: Path) -> MakeProvider:
        return partial(LocalProvider, tmp_path / "sandboxes", DEPLOYMENT, tmp_path / "workspaces", tmp_path / "homes")

    def living(self, key: str) -> list[int]:
        return carrying("AGENT_SANDBOX", key)


class TestLocalToolCalls(ToolCallsKit):
    @pytest.fixture
    def make_provider(self, tmp_path: Path) -> MakeProvider:
        return partial(LocalProvider, tmp_path / "sandboxes", "test", tmp_path / "workspaces")


class TestLocalSources(SourcesKit):
    @pytest.fixture
    def make_provider(self, tmp_path: Path, sources: Path) -> MakeProvider:
        data = tmp_path / "data"
        return partial(LocalProvider, data / "sandboxes", "test", data / "workspaces", sources=[str(sources)])
