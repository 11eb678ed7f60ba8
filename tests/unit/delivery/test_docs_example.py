"""What docs/delivery-logs.md shows works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from unit.delivery.hosts import loop, played

from runtime.delivery.driver import RunDriver
from runtime.delivery.durability import StreamDurability
from runtime.delivery.memory import FIRST_CHUNK_DEADLINE_MS, MAX_LOGS, TTL_MS, MemoryStreams
from runtime.delivery.records import MemoryRunRecords

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "delivery-logs.md").read_text()
WHOLE, WITHIN, _STORES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_example_runs_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    exec(WHOLE, {"__name__": "example"})  # noqa: S102 - our own page
    printed = capsys.readouterr().out
    assert "TEXT_MESSAGE_START" in printed
    assert printed.count("TEXT_MESSAGE_CONTENT") == 3
    assert printed.endswith("'RUN_FINISHED'], <Status.COMPLETED: 'completed'>)\n")


def test_the_claim_by_hand_works_too() -> None:
    names: dict[str, Any] = {}
    agent = WHOLE[WHOLE.index("async def agent") : WHOLE.index("async def main")]
    body = "".join(f"    {line}\n" for line in WITHIN.strip().split("\n"))
    exec(f"{agent}\nasync def by_hand(driver):\n{body}    return row\n", names)  # noqa: S102 - our own page

    async def case() -> None:
        records = MemoryRunRecords()
        await records.create_or_resume("run-2", "thread-1", 1)
        driver = RunDriver(records=records, logs=MemoryStreams(loop()).log, clock=loop())
        assert (await names["by_hand"](driver)).status == "completed"

    played(case())


def test_the_table_names_every_method_of_the_port() -> None:
    methods = {name for name in vars(StreamDurability) if not name.startswith("_")} - {"run_id"}
    assert {re.split(r"\W", cell)[0] for cell in re.findall(r"^\| `(.*?)` \|", PAGE, re.MULTILINE)} >= methods


def test_the_page_has_the_numbers_of_the_code() -> None:
    assert f"`first_chunk_deadline_ms` ({FIRST_CHUNK_DEADLINE_MS})" in PAGE
    assert f"{TTL_MS // 60_000} minutes after their close" in PAGE
    assert f"beyond {MAX_LOGS:,} logs" in PAGE
