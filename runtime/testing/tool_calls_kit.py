"""The conformance kit of providers that declare `host_tools`: calls of an agent, through its sandbox, as `CarriesCalls`
has them. It is used as `SandboxKit` is, beside it.
"""

# ruff: noqa: D102 - as in `sandbox_kit.py`

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from runtime.core import chunk
from runtime.ports import CarriesCalls, LaunchSpec, Sandbox, SandboxProvider
from runtime.testing.provider_kit import MakeProvider, ProviderKit
from runtime.testing.sandbox_kit import DEADLINE_S, ENV, read_all

TOKEN, ANOTHER = "of-this-run", "of-another-run"
TOOLS = [{"name": "add", "description": "Add.", "inputSchema": {"type": "object"}}]
LISTING = '{"jsonrpc":"2.0","id":1,"method":"tools/list"}'


def result(text: str) -> bytes:
    """Return an answer."""
    return json.dumps({"content": [{"type": "text", "text": text}], "isError": False}).encode()


@pytest.mark.asyncio
class ToolCallsKit(ProviderKit):
    """What every provider that declares `host_tools` must do."""

    async def test_a_call_waits_for_whoever_comes_and_has_one_answer(
        self, provider: SandboxProvider, make_provider: MakeProvider
    ) -> None:
        sandbox = await offered(provider)
        await launch(sandbox, "$TOOLS call add '{\"a\": 1}'; $TOOLS call add; echo that was $?")
        first = await the_call(sandbox)
        assert (first["tool"], first["arguments"]) == ("add", {"a": 1})
        assert await carrier(sandbox).calls([first["id"]], 0.0) == []
        successor = await make_provider().resume(sandbox.key)
        assert successor is not None
        assert await the_call(successor) == first
        await carrier(successor).answer_call(first["id"], result("two"))
        await carrier(sandbox).answer_call(first["id"], result("another"))
        second = await the_call(successor)
        assert (second["arguments"], second["id"] != first["id"]) == ({}, True)
        await carrier(sandbox).answer_call(second["id"], result("three"))
        assert await read_all(sandbox) == b"two\nthree\nthat was 0\n"
        assert await carrier(sandbox).calls([], 0.0) == []

    async def test_only_who_has_the_token_is_told_of_tools_and_can_call(self, provider: SandboxProvider) -> None:
        sandbox = await offered(provider)
        await launch(
            sandbox,
            f"echo '{LISTING}' | $TOOLS; AGENT_TOOLS_TOKEN={ANOTHER}; export AGENT_TOOLS_TOKEN; "
            f"echo '{LISTING}' | $TOOLS; $TOOLS call add 2>/dev/null; echo refused $?; touch tried",
        )
        reading = asyncio.create_task(read_all(sandbox))
        while not reading.done():  # somebody must look, or nobody is refused
            assert await carrier(sandbox).calls([], 0.1) == []
        listed, hidden, refused, _ = (await reading).split(b"\n")
        assert chunk.decode(listed)["result"]["tools"] == TOOLS
        assert "result" not in chunk.decode(hidden)
        assert refused == b"refused 1"

    async def test_a_later_offer_leaves_the_earlier_one_alone(self, provider: SandboxProvider) -> None:
        """Two drivers may race to launch; each has made an offer, and one of them launches."""
        sandbox = await offered(provider)
        await carrier(sandbox).offer_tools(chunk.digest(ANOTHER.encode()), b"[]")
        await launch(sandbox, f"echo '{LISTING}' | $TOOLS; $TOOLS call add")
        await carrier(sandbox).answer_call((await the_call(sandbox))["id"], result("two"))
        listed, called, _ = (await read_all(sandbox)).split(b"\n")
        assert (chunk.decode(listed)["result"]["tools"], called) == (TOOLS, b"two")


async def offered(provider: SandboxProvider) -> Sandbox:
    """Return a new sandbox, in which tools are offered."""
    assert provider.capabilities.host_tools
    sandbox = await provider.create(provider.key("run-1"), "thread-1")
    await carrier(sandbox).offer_tools(chunk.digest(TOKEN.encode()), json.dumps(TOOLS).encode())
    return sandbox


async def launch(sandbox: Sandbox, script: str) -> None:
    """Launch a shell that finds the server as `$TOOLS`, and has the token."""
    env = {**ENV, "AGENT_TOOLS_TOKEN": TOKEN, "TOOLS": " ".join(carrier(sandbox).tool_server())}
    await sandbox.launch(LaunchSpec(argv=("/bin/sh", "-c", script), env=env))


async def the_call(sandbox: Sandbox) -> dict[str, Any]:
    """Return the one call that waits, once it does."""
    found: Sequence[dict[str, Any]] = ()
    async with asyncio.timeout(DEADLINE_S):
        while not found:
            found = await carrier(sandbox).calls([], 5.0)
    (call,) = found
    return call


def carrier(sandbox: Sandbox) -> CarriesCalls:
    """Return the sandbox as what it is declared to be."""
    assert isinstance(sandbox, CarriesCalls)
    return sandbox
