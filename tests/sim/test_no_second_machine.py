"""The simulator plays the production core and engine; it has no claim, append or finish of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.core import creating, intending, machine, writing
from runtime.engine import driver, shard, supervisor
from runtime.stores import memory
from runtime.testing import sim_fleet, sim_shards, sim_supervisors, simulator

FOLDER = Path(simulator.__file__).parent
SOURCES = sorted([*FOLDER.glob("sim_*.py"), *FOLDER.glob("simulat*.py")])

# Who decides in production, and under which name: a function of the simulator called so would be a second machine.
DECIDERS = {"decide", "claim", "append", "finish", "note", "assign", "holds", "end_last_claim", "_repeat_of"}
# What only decisions make: whoever builds one of these answers a question that the machine is asked.
ANSWERS = {
    "Appended", "AlreadyEnded", "Assigned", "Claimed", "Closed", "Created", "Decision", "Done", "Exhausted", "Finished",
    "IllegalMove", "Joined", "LogFull", "MustAbort", "NotClaimable", "SeqConflict", "Superseded", "SupervisorOpened",
    "SupervisorStale", "ThreadBusy", "UnknownRun",
}  # fmt: skip
# Functions that other protocols want so: a translator's last word.
ALLOWED = {("sim_agent.py", "finish")}
# And what only the production engine and its stores do with records.
WRITES = {"with_", "Head", "FinishMark", "Claim", "Transaction", "Tables"}


def _findings(path: Path, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name.lstrip("_") in DECIDERS:
                if (path.name, name) not in ALLOWED:
                    yield f"{path.name}:{node.lineno}: a function {name}"
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in ANSWERS | WRITES:
                yield f"{path.name}:{node.lineno}: a call of {name}"


def test_the_simulator_decides_nothing() -> None:
    assert len(SOURCES) > 10
    found = [finding for path in SOURCES for finding in _findings(path, ast.parse(path.read_text()))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    ["def claim(self, op): ...", "async def append(): ...", "x = ops.Appended(seq=1)", "head.with_(closed=True)"],
)
def test_a_second_machine_would_be_found(text: str) -> None:
    assert list(_findings(Path("sim_x.py"), ast.parse(text)))


def test_what_it_plays_is_production() -> None:
    assert vars(sim_shards)["Shard"] is shard.Shard
    assert vars(sim_fleet)["Driver"] is driver.Driver
    assert vars(sim_supervisors)["Supervisor"] is supervisor.Supervisor
    assert vars(simulator)["MemoryStore"] is memory.MemoryStore
    assert vars(memory)["decide"] is machine.decide


def test_every_decision_of_a_history_is_made_by_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[str] = set()
    for module, names in (
        (creating, ("create", "claim")),
        (writing, ("append", "finish")),
        (intending, ("note", "assign")),
    ):
        for name in names:
            real = getattr(module, name)

            def counted(*args: object, real: object = real, name: str = name) -> object:
                asked.add(name)
                return real(*args)  # type: ignore[operator]

            monkeypatch.setattr(module, name, counted)
    for seed in range(3):
        assert not simulator.simulate(seed).breaches
    assert asked == {"create", "claim", "append", "finish", "note", "assign"}


def test_no_os_thread_and_no_real_time_is_in_it() -> None:
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
        allowed = {"time"} if path.name == "simulate.py" else set()
        assert not imported & {"threading", "concurrent.futures", "time", "datetime"} - allowed, path.name
