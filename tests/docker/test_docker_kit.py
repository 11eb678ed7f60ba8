"""The `docker` provider passes the kit."""

from __future__ import annotations

import pytest
from leftovers import carrying

from runtime.testing.provider_kit import MakeProvider
from runtime.testing.sandbox_kit import SandboxKit
from runtime.testing.tool_calls_kit import ToolCallsKit

pytestmark = pytest.mark.timeout(180)  # containers, on a machine that may be busy


class TestDockerProvider(SandboxKit):
    odd_ids = ("..", "$(touch pwned)", "a\nb", "x" * 301)

    @pytest.fixture
    def make_provider(self, make_docker: MakeProvider) -> MakeProvider:
        return make_docker

    def living(self, key: str) -> list[int]:
        return carrying("AGENT_SANDBOX", key)


class TestDockerToolCalls(ToolCallsKit):
    @pytest.fixture
    def make_provider(self, make_docker: MakeProvider) -> MakeProvider:
        return make_docker
