"""The agent's end of host tools: a program that speaks MCP, and the files by which it hands calls on."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession, StdioServerParameters, stdio_client
from mcp.types import TextContent

from runtime.sandboxes import spool
from runtime.sandboxes.local import LocalProvider, LocalSandbox
from runtime.sandboxes.tool_server import CALL_BYTES, LONG_NAME, NAME_CHARACTERS, TOKEN, digest, fault

SECRET = "a-token-of-this-run"
LISTED = [{"name": "add", "description": "Add.", "inputSchema": {"type": "object"}}]
WAIT_S = 30.0


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[LocalSandbox]:
    provider = LocalProvider(tmp_path / "sandboxes", "test", tmp_path / "workspaces")
    sandbox = await provider.create(provider.key("run"), "thread")
    await sandbox.offer_tools(digest(SECRET), json.dumps(LISTED).encode())
    yield sandbox
    await provider.destroy(sandbox.key)


class Client:
    """What an agent's MCP client says and hears, line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def say(self, method: str, id: int | None = None, **params: Any) -> None:
        assert self.process.stdin is not None
        message = {"jsonrpc": "2.0", "method": method, "params": params, **({} if id is None else {"id": id})}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        await self.process.stdin.drain()

    async def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            heard: dict[str, Any] = json.loads(await self.process.stdout.readline())
        return heard

    async def leave(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        async with asyncio.timeout(WAIT_S):
            return await self.process.wait()


async def start(sandbox: LocalSandbox, *arguments: str, token: str = SECRET) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    argv = (*sandbox.tool_server(), *arguments)
    return await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=pipe, env={TOKEN: token})


async def next_call(sandbox: LocalSandbox) -> dict[str, Any]:
    (call,) = await sandbox.calls([], WAIT_S)
    return call


def result(text: str, failed: bool = False) -> bytes:
    return json.dumps({"content": [{"type": "text", "text": text}], "isError": failed}).encode()


async def test_calls_go_in_and_answers_come_out_in_any_order(sandbox: LocalSandbox) -> None:
    client = Client(await start(sandbox))
    await client.say("initialize", 1, protocolVersion="2025-03-26")
    assert (await client.hear())["result"]["protocolVersion"] == "2025-03-26"
    await client.say("notifications/initialized")
    await client.say("tools/list", 2)
    assert (await client.hear())["result"] == {"tools": LISTED}
    await client.say("tools/call", 3, name="add", arguments={"a": 1})
    first = await next_call(sandbox)
    assert (first["tool"], first["arguments"]) == ("add", {"a": 1})
    await client.say("tools/call", 4, name="add", arguments={"a": 2})
    (second,) = await sandbox.calls([first["id"]], WAIT_S)
    for at, call in ((4, second), (3, first)):
        await sandbox.answer_call(call["id"], result(str(at)))
        heard = await client.hear()
        assert (heard["id"], heard["result"]["content"][0]["text"]) == (at, str(at))
    await client.say("resources/list", 5)
    assert (await client.hear())["error"]["code"] == -32601
    assert await client.leave() == 0
    assert await sandbox.calls([], 0.0) == []
    assert list((sandbox._home / "tools" / "answers").iterdir()) == [], "an answer that was read stays"


async def test_the_protocols_own_client_takes_it_for_a_server(sandbox: LocalSandbox) -> None:
    command, *arguments = sandbox.tool_server()
    server = StdioServerParameters(command=command, args=arguments, env={TOKEN: SECRET})
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        assert [(tool.name, tool.description) for tool in (await session.list_tools()).tools] == [("add", "Add.")]
        calling = asyncio.create_task(session.call_tool("add", {"a": 1}))
        call = await next_call(sandbox)
        assert call["arguments"] == {"a": 1}
        await sandbox.answer_call(call["id"], result("3"))
        (content,) = (await calling).content
        assert isinstance(content, TextContent)
        assert content.text == "3"
        calling = asyncio.create_task(session.call_tool("add", {}))
        await sandbox.answer_call((await next_call(sandbox))["id"], result("no", failed=True))
        assert (await calling).is_error


async def test_a_call_outlives_whoever_was_to_answer_it_and_has_one_answer(sandbox: LocalSandbox) -> None:
    client = Client(await start(sandbox))
    await client.say("tools/call", 1, name="add", arguments={})
    call = await next_call(sandbox)
    assert await next_call(sandbox) == call
    await sandbox.answer_call(call["id"], result("the first"))
    await sandbox.answer_call(call["id"], result("another"))
    assert (await client.hear())["result"]["content"][0]["text"] == "the first"
    await client.leave()


async def test_a_call_that_the_agent_gives_up_is_gone(sandbox: LocalSandbox) -> None:
    client = Client(await start(sandbox))
    await client.say("tools/call", 1, name="add", arguments={})
    await next_call(sandbox)
    await client.say("notifications/cancelled", requestId=1)
    await client.say("ping", 2)
    assert (await client.hear())["id"] == 2
    assert await sandbox.calls([], 0.0) == []
    await client.leave()


async def test_one_call_can_be_made_from_a_shell(sandbox: LocalSandbox) -> None:
    process = await start(sandbox, "call", "add", '{"a": 1}')
    call = await next_call(sandbox)
    await sandbox.answer_call(call["id"], result("3"))
    assert await process.communicate() == (b"3\n", b"")
    process = await start(sandbox, "call", "add")
    await sandbox.answer_call((await next_call(sandbox))["id"], result("no", failed=True))
    assert (await process.communicate(), process.returncode) == ((b"", b"no\n"), 1)
    process = await start(sandbox, "call", "add", "[1]")
    out, complaint = await process.communicate()
    assert (out, process.returncode, b"JSON object" in complaint) == (b"", 1, True)


async def test_without_the_runs_token_nothing_is_listed_or_called(sandbox: LocalSandbox) -> None:
    client = Client(await start(sandbox, token="of another run"))
    await client.say("tools/list", 1)
    assert "error" in await client.hear()
    await client.say("tools/call", 2, name="add", arguments={})
    hearing = asyncio.create_task(client.hear())
    while not hearing.done():  # somebody must look, or nobody is refused
        assert await sandbox.calls([], 0.05) == []
    heard = await hearing
    assert (heard["result"]["isError"], heard["result"]["content"][0]["text"]) == (True, spool.REFUSED)
    await client.leave()


async def test_what_is_no_call_is_none(sandbox: LocalSandbox, tmp_path: Path) -> None:
    """An agent may put anything where its calls are."""
    calls = sandbox._home / "tools" / "calls"
    good = {"token": SECRET, "tool": "add", "arguments": {}}
    (tmp_path / "elsewhere").write_text(json.dumps(good))
    (calls / f"{1:032x}").symlink_to(tmp_path / "elsewhere")
    (calls / f"{2:032x}").mkdir()
    os.mkfifo(calls / f"{3:032x}")
    for number, text in enumerate(("{", "[]", json.dumps({**good, "tool": 1}), "[" * 100_000, "x" * (2 << 20)), 4):
        (calls / f"{number:032x}").write_text(text)
    (calls / "..name").write_text(json.dumps(good))
    (calls / f"{99:032x}").write_text(json.dumps(good))
    found: list[dict[str, Any]] = []
    while not found:
        found = await sandbox.calls([], 0.0)
    assert found == [{"id": f"{99:032x}", "tool": "add", "arguments": {}}]


async def test_of_many_great_calls_some_are_told_at_a_time_and_all_in_the_end(sandbox: LocalSandbox) -> None:
    calls = sandbox._home / "tools" / "calls"
    great = {"token": SECRET, "tool": "add", "arguments": {"text": "x" * (CALL_BYTES - 200)}}
    ids = [f"{number:032x}" for number in range(4)]
    for id in ids:
        (calls / id).write_text(json.dumps(great))
    known: list[str] = []
    for _ in ids:
        found = await sandbox.calls(known, 0.0)
        assert len(json.dumps(found)) < 2 * CALL_BYTES
        known += [call["id"] for call in found]
    assert sorted({*known}) == ids
    assert await sandbox.calls(known, 0.0) == []


@pytest.mark.parametrize("depth", [spool.MOST_DEEP, spool.MOST_DEEP + 1, 950, 100_000])
async def test_arguments_that_a_later_reader_could_not_read_are_refused(sandbox: LocalSandbox, depth: int) -> None:
    folder = sandbox._home / "tools"
    nested = '{"a":' + "[" * (depth - 1) + "]" * (depth - 1) + "}"
    call = '{"token":"%s","tool":"add","arguments":%s}' % (SECRET, nested)  # noqa: UP031 - braces
    (folder / "calls" / f"{1:032x}").write_text(call)
    found = await sandbox.calls([], 0.0)
    answers = [json.loads(path.read_bytes()) for path in (folder / "answers").iterdir()]
    if depth <= spool.MOST_DEEP:
        assert ([call["id"] for call in found], answers) == ([f"{1:032x}"], [])
    else:
        assert (found, answers) == ([], [fault(spool.TOO_DEEP)])


@pytest.mark.parametrize("longer", [0, 1, CALL_BYTES - 200])
async def test_a_name_that_no_tool_can_have_is_refused_and_told_of_nowhere(sandbox: LocalSandbox, longer: int) -> None:
    """Of an agent that writes its calls itself: a name goes into the log, and may not be as long as a call."""
    folder = sandbox._home / "tools"
    name = "x" * (NAME_CHARACTERS + longer)
    (folder / "calls" / f"{1:032x}").write_text(json.dumps({"token": SECRET, "tool": name, "arguments": {}}))
    found = await sandbox.calls([], 0.0)
    answers = [json.loads(path.read_bytes()) for path in (folder / "answers").iterdir()]
    expected: tuple[list[str], list[Any]] = ([name], []) if longer == 0 else ([], [fault(LONG_NAME)])
    assert ([call["tool"] for call in found], answers) == expected


async def test_a_client_that_names_such_a_tool_is_told_at_once(sandbox: LocalSandbox) -> None:
    client = Client(await start(sandbox))
    await client.say("tools/call", 1, name="x" * (NAME_CHARACTERS + 1), arguments={})
    heard = (await client.hear())["result"]
    assert (heard["isError"], LONG_NAME in heard["content"][0]["text"]) == (True, True)
    assert list((sandbox._home / "tools" / "calls").iterdir()) == []
    await client.leave()
