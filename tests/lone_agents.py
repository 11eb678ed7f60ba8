"""One run of a real agent without an instance: launched by its harness in a sandbox of any provider, followed to its
end, read by its translator."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import agent_runs
from agent_runs import Log
from real_agents import Agent
from waiting import until

from runtime.core.framing import Framer
from runtime.core.launch import AgentExit
from runtime.core.record import RunSpec
from runtime.ports import Sandbox, SandboxProvider

DEADLINE_S = 60.0  # an agent takes about a second on an idle machine


@dataclass(frozen=True)
class Played:
    """What a run left."""

    journal: bytes
    exit: AgentExit
    stderr: bytes
    log: Log

    @property
    def text(self) -> str:
        """Return all text of the agent."""
        return "".join(event["delta"] for event in self.log.of("TEXT_MESSAGE_CONTENT"))

    @property
    def results(self) -> list[str]:
        """Return what each tool call came to."""
        return [event["content"] for event in self.log.of("TOOL_CALL_RESULT")]

    def custom(self, name: str) -> list[Any]:
        """Return the values of CUSTOM events of that name."""
        return [event["value"] for event in self.log.of("CUSTOM") if event["name"] == name]

    def raw(self, **fields: Any) -> list[dict[str, Any]]:
        """Return what was printed beyond the translator's table, where it has these fields."""
        events = [event["event"] for event in self.log.of("RAW")]
        return [event for event in events if fields.items() <= event.items()]


class LoneAgents:
    """Runs agents in the sandboxes of one provider, each under a run id of its own."""

    def __init__(self, provider: SandboxProvider, env: Mapping[str, str]) -> None:
        self._provider = provider
        self.env = dict(env)

    async def start(
        self, agent: Agent, run: str, prompt: str, thread: str | None = None, **options: Any
    ) -> tuple[Sandbox, RunSpec]:
        """Launch the agent; return its sandbox, and what its run is."""
        spec = agent_runs.spec(agent.name, prompt, self._provider.name, **options)
        agent.harness.validate(spec.input)
        sandbox = await self._provider.create(self._provider.key(run), thread or f"thread of {run}")
        env = self.env if sandbox.home is None else {**self.env, "HOME": sandbox.home}
        await sandbox.launch(agent.harness.launch(run, spec, env, sandbox.workspace, []))
        return sandbox, spec

    async def end(self, agent: Agent, sandbox: Sandbox, spec: RunSpec) -> Played:
        """Follow it to its end, then destroy its sandbox."""
        async with asyncio.timeout(DEADLINE_S):
            journal = b"".join([piece async for piece in sandbox.follow(0)])
        exit = await sandbox.exit()
        assert exit is not None
        stderr = await sandbox.stderr_tail(1 << 16)
        await self._provider.destroy(sandbox.key)
        framer = Framer(0, 64 << 20)
        lines, torn = framer.feed(journal).lines, framer.finish().lines
        log = agent_runs.play(agent.harness, spec, lines, exit, stderr=stderr, torn=torn[0] if torn else None)
        return Played(journal, exit, stderr, log)

    async def play(self, agent: Agent, run: str, prompt: str, thread: str | None = None, **options: Any) -> Played:
        """Run the agent to its end."""
        return await self.end(agent, *await self.start(agent, run, prompt, thread, **options))


async def wait_for_file(sandbox: Sandbox, name: str) -> None:
    """Return once a file is in the workspace of a `local` sandbox."""
    await until(Path(sandbox.workspace, name).exists, f"{name} in the workspace", DEADLINE_S)
