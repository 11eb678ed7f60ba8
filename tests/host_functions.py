"""Host tools as tests declare them. What they do beyond their results they write into the folder that FOLDER names."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from waiting import wait_until

from runtime.host_tools import ToolContext, ToolError, tool

FOLDER = "TEST_TOOLS_FOLDER"
SETTING = ",".join(f"{name}=host_functions:{name}" for name in ("add", "slow_add", "fail", "hold", "hold_again", "who"))
DEADLINE_S = 60.0


def note(name: str, text: str) -> None:
    """Write down that a tool was called: one line for each time."""
    with (Path(os.environ[FOLDER]) / name).open("a") as file:
        file.write(f"{text}\n")


def add(a: int, b: int = 1) -> int:
    """Return the sum of two numbers."""
    return a + b


async def slow_add(a: int, b: int, context: ToolContext) -> dict[str, int]:
    """Return the sum of two numbers, and say so as it goes."""
    context.emit("sum.begun", {"a": a})
    await asyncio.sleep(0)
    context.emit("sum.made", {"sum": a + b})
    return {"sum": a + b}


def fail(why: str) -> None:
    """Fail."""
    raise ToolError(why)


def hold(name: str, context: ToolContext) -> str:
    """Write down that it was called, and return once `<name>.open` is there."""
    note(name, context.call_id)
    context.emit("held", {"name": name})
    _wait(name)
    return f"{name} was opened"


@tool(idempotent=True)
def hold_again(name: str, context: ToolContext) -> str:
    """Do as `hold` does; it may be called again."""
    return hold(name, context)


def who(context: ToolContext) -> dict[str, str]:
    """Return whose call it is."""
    return {"run": context.run_id, "thread": context.thread_id, "owner": context.owner}


def _wait(name: str) -> None:
    wait_until((Path(os.environ[FOLDER]) / f"{name}.open").exists, f"{name}.open", DEADLINE_S)
