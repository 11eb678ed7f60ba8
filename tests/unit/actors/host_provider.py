"""A provider on several hosts that are none: which host a call is on, a context variable says."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NoReturn

from runtime.core.workspace import WorkspaceSource
from runtime.errors import LaunchFailed, SandboxUnreachable
from runtime.ports import Capabilities, Sandbox
from runtime.settings import Settings

HERE: ContextVar[str] = ContextVar("host", default="home")
NOTHING = "nothing"  # a host without what the provider needs
SANDBOXES: dict[str, set[str]] = {}  # host -> the keys of what exists there
PROVIDERS = f"hosted={__name__}:HostProvider"


class HostProvider:
    """Sandboxes that only their own host sees; a key is `<host>/<run id>`."""

    name = "hosted"
    capabilities = Capabilities(one_host=True)

    def __init__(self, settings: Settings, deployment: str) -> None:
        self.settings = settings
        self.deployment = deployment

    def key(self, run_id: str) -> str:
        if HERE.get() == NOTHING:
            raise LaunchFailed("nothing can be made here")
        return f"{HERE.get()}/{run_id}"

    def host(self, key: str) -> str:
        return key.partition("/")[0]

    async def create(self, key: str, thread_key: str, source: WorkspaceSource | None = None) -> NoReturn:
        raise NotImplementedError

    async def resume(self, key: str) -> Sandbox | None:
        raise NotImplementedError

    async def list(self) -> list[str]:
        return sorted(SANDBOXES.get(HERE.get(), ()))

    async def destroy(self, key: str) -> None:
        if self.host(key) != HERE.get():
            raise SandboxUnreachable(f"{key} is not on {HERE.get()}")
        SANDBOXES[HERE.get()].discard(key)
