"""What is told of files beside a follow: after RUN_STARTED, each once, and never at the cost of the run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from unit.engine.stage import Stage, claim, create, spec
from waiting import until

from runtime.core import chunk
from runtime.engine import file_events
from runtime.engine.clock import SystemClock
from runtime.engine.file_events import FileEvents
from runtime.errors import LogClosedError, SandboxLost
from runtime.ports import FileChange, WholeDiff
from runtime.testing.sim_agent import Script
from runtime.testing.sim_loop import play
from runtime.testing.sim_sandbox import SimSandbox


def change(path: str, diff: str | None = None) -> FileChange:
    return FileChange(type="create", path=path, timestamp=7, key=f"key-{path}", diff=diff)


class Telling:
    """A sandbox whose looks are `looks`, then nothing; and a log."""

    def __init__(self, *looks: list[FileChange] | Exception) -> None:
        self.looks = list(looks)
        self.asked = 0
        self.settled = False
        self.looking = 0
        self.hangs = False
        self.held: asyncio.Event | None = None  # until then a look goes on, as in a thread that nobody can cancel
        self.started = True
        self.closed = False
        self.told: list[tuple[str, str]] = []
        self.log_bytes = 0
        self.whole: WholeDiff | Exception | None = None
        self.bounds = (0, 0.0)

    async def file_changes(self, *, diffs: bool, settled: bool) -> Sequence[FileChange]:
        assert diffs
        self.settled = settled
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        look = self.looks.pop(0) if self.looks else []
        if isinstance(look, Exception):
            raise look
        if self.held is not None:
            self.looking += 1
            assert self.looking == 1, "one look at a time"
            await asyncio.shield(asyncio.create_task(self.held.wait()))
            self.looking -= 1
        return look

    async def whole_diff(self, max_bytes: int, within_s: float) -> WholeDiff | None:
        self.bounds = (max_bytes, within_s)
        if self.hangs:
            await asyncio.Event().wait()
        if isinstance(self.whole, Exception):
            raise self.whole
        return self.whole

    async def tell(self, data: bytes, key: str) -> None:
        if self.closed:
            raise LogClosedError("r-1")
        event = chunk.decode_chunk(data)
        assert "timestamp" not in event
        if key not in (known for _, known in self.told):
            self.log_bytes += len(data)
        self.told.append((json.dumps([event["name"], event["value"]]), key))

    async def looked(self) -> str:
        """Return once it was asked."""
        await until(lambda: self.asked, "a look")
        return "the end"

    def events(self, max_log_bytes: int = 1 << 30, *, diffs: bool = True) -> FileEvents:
        return FileEvents(
            "r-1",
            self,
            SystemClock(),
            self.tell,
            lambda: self.started,
            lambda: self.log_bytes,
            max_log_bytes=max_log_bytes,
            diffs=diffs,
        )


async def test_changes_are_told_while_the_agent_works_and_what_came_last_after_it() -> None:
    telling = Telling([change("a", "diff of a")])
    work = asyncio.Event()

    async def follow() -> str:
        await work.wait()
        telling.looks.append([change("b")])
        return "the end"

    following = asyncio.create_task(telling.events().beside(follow()))
    await until(lambda: len(telling.told) == 2, "the first ones")
    work.set()
    assert await following == "the end"
    assert [text for text, _ in telling.told] == [
        '["sandbox.file", {"path": "a", "timestamp": 7, "type": "create"}]',
        '["sandbox.file.diff", {"diff": "diff of a", "path": "a"}]',
        '["sandbox.file", {"path": "b", "timestamp": 7, "type": "create"}]',
    ]
    assert len({key for _, key in telling.told}) == 3
    assert telling.settled, "nothing waits for a next look at the end"


async def nothing() -> str:
    return "the end"


async def test_nothing_is_told_before_the_run_has_started() -> None:
    telling = Telling([change("a")])
    telling.started = False
    assert await telling.events().beside(nothing()) == "the end"
    assert (telling.asked, telling.told) == (0, [])


async def test_a_look_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_events, "LAST_S", 0.05)
    telling = Telling()
    telling.hangs = True
    assert await telling.events().beside(telling.looked()) == "the end"


async def test_a_look_that_is_under_way_at_the_end_is_told_and_is_the_only_one() -> None:
    telling = Telling([change("a")], [change("b")])
    telling.held = asyncio.Event()

    async def follow() -> str:
        assert telling.held is not None
        await telling.looked()
        asyncio.get_running_loop().call_soon(telling.held.set)  # after this has ended
        return "the end"

    assert await telling.events().beside(follow()) == "the end"
    assert [key for _, key in telling.told] == ["key-a", "key-b"]


@pytest.mark.parametrize("error", [None, LogClosedError("r-1"), KeyError("a path")])
async def test_what_goes_wrong_ends_the_telling_and_not_the_run(error: Exception | None) -> None:
    telling = Telling(*([error, error] if error else [[change("a")]]))
    telling.closed = error is None
    assert await telling.events().beside(telling.looked()) == "the end"
    assert telling.told == []


async def test_a_driver_tells_so_many_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_events, "MAX_EVENTS", 2)
    telling = Telling([change("a"), change("b"), change("c")])
    await telling.events().beside(telling.looked())
    assert [key for _, key in telling.told] == ["key-a", "key-b"]


async def test_a_long_path_makes_no_long_key() -> None:
    names = ["x" * 4000, "x" * 4000 + "y", "z" * (file_events.KEY_CHARS - len("key-"))]
    telling = Telling([change(name, "diff") for name in names], [change(names[0], "diff")])
    await telling.events().beside(nothing())
    keys = [key for _, key in telling.told]
    assert keys[6:] == keys[:2], "the same one each time"
    assert len(set(keys)) == 6, "another one for each"
    assert keys[4] == f"key-{names[2]}"
    assert max(map(len, keys)) < 256


async def told_keys(telling: Telling, max_log_bytes: int) -> list[str]:
    telling.told.clear()
    await telling.events(max_log_bytes).beside(nothing())
    return [key for _, key in telling.told]


async def test_a_share_of_the_log_is_all_that_is_told_since_its_bound_would_end_the_run() -> None:
    telling = Telling([change(name) for name in "abc"])
    assert await told_keys(telling, 1 << 30) == ["key-a", "key-b", "key-c"]
    size = telling.log_bytes // 3
    telling = Telling([change("a"), change("b", "+" * size), change("c")])
    assert await told_keys(telling, 16 * 3 * size) == ["key-a", "key-b"], "no diff is told, and nothing after it"


async def test_what_was_told_before_a_takeover_counts_as_part_of_the_log() -> None:
    telling, bound, drives = Telling(), 16 << 10, 0
    while True:
        telling.looks = [[change(f"{drives}-{at}") for at in range(100)]]
        if not await told_keys(telling, bound):
            break
        drives += 1
    assert bound // 2 - 100 < telling.log_bytes <= bound // 2
    assert drives >= 16 // 2


async def test_what_is_told_again_takes_nothing_of_the_share() -> None:
    telling = Telling([change("a")] * 1000)
    assert len(await told_keys(telling, 16 << 10)) == 1000


async def test_an_error_of_the_follow_is_its_own() -> None:
    async def fail() -> None:
        raise ValueError("of the follow")

    with pytest.raises(ValueError, match="of the follow"):
        await Telling().events().beside(fail())


async def whole(telling: Telling, max_log_bytes: int = 1 << 30) -> Any:
    data = await telling.events(max_log_bytes).whole()
    if data is None:
        return None
    event = chunk.decode_chunk(data)
    assert (event["type"], event["name"]) == ("CUSTOM", "file.changed")
    return event["value"]


async def test_the_whole_diff_is_one_chunk_for_the_finish_and_says_if_it_is_not_whole() -> None:
    telling = Telling()
    telling.whole = WholeDiff(diff="+x\n", truncated=False)
    assert await whole(telling) == {"path": ".", "diff": "+x\n"}
    telling.whole = WholeDiff(diff="", truncated=True)
    assert await whole(telling) == {"path": ".", "diff": "", "truncated": True}
    assert telling.told == [], "only the finish stores it"


@pytest.mark.parametrize("found", [None, WholeDiff(diff="", truncated=False), SandboxLost("gone"), KeyError("a path")])
async def test_there_is_no_whole_diff_where_nothing_differs_or_nobody_can_say(found: Any) -> None:
    telling = Telling()
    telling.whole = found
    assert await whole(telling) is None


async def test_a_whole_diff_that_is_asked_for_is_waited_for_so_long_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(file_events, "WHOLE_S", 0.05)
    telling = Telling()
    telling.hangs = True
    assert await whole(telling) is None


async def test_a_whole_diff_takes_a_share_of_the_log_and_no_more() -> None:
    telling = Telling()
    telling.whole = WholeDiff(diff="\x01" * (file_events.WHOLE_BYTES // 2), truncated=False)
    assert await whole(telling) == {"path": ".", "diff": "", "truncated": True}, "JSON takes six bytes for each"
    assert telling.bounds[0] == file_events.WHOLE_BYTES
    await whole(telling, 16 << 10)
    assert telling.bounds[0] == 1 << 10
    assert telling.bounds[1] < file_events.WHOLE_S


async def test_who_asked_for_no_diffs_gets_none() -> None:
    telling = Telling()
    telling.whole = WholeDiff(diff="+x\n", truncated=False)
    assert await telling.events(diffs=False).whole() is None
    assert telling.bounds == (0, 0.0), "it is not even looked for"


def test_the_whole_diff_is_told_once_by_whoever_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two drivers die or are replaced between their look at it and their finish."""
    looked: list[str] = []

    async def acts() -> None:
        stage = Stage(Script(pieces=[(0.5, b"say m on\n"), (0.1, b"result\n")]))
        shard = await stage.open()

        async def file_changes(_box: SimSandbox, *, diffs: bool, settled: bool) -> list[FileChange]:
            return []

        async def whole_diff(_box: SimSandbox, max_bytes: int, within_s: float) -> WholeDiff:
            looked.append(f"look {len(looked) + 1}")
            if len(looked) == 1:
                driving.cancel()
            if len(looked) == 2:
                await shard.submit(claim(2, "next"))
            return WholeDiff(diff=looked[-1], truncated=False)

        monkeypatch.setattr(SimSandbox, "file_changes", file_changes, raising=False)
        monkeypatch.setattr(SimSandbox, "whole_diff", whole_diff, raising=False)
        asked = replace(spec(), input={**spec().input, "forwardedProps": {"fileEvents": "diff"}})
        await shard.submit(replace(create(), spec=asked))
        driving = asyncio.create_task(stage.drive(shard))
        await asyncio.gather(driving, return_exceptions=True)
        assert driving.cancelled()
        assert (await stage.drive(shard, 1, "replaced")).kind == "superseded"
        assert (await stage.drive(shard, 3, "successor")).kind == "finished"
        events = [chunk.decode_chunk(data) for data in stage.log()]
        (changed,) = [event for event in events if event.get("name") == "file.changed"]
        assert changed["value"] == {"path": ".", "diff": "look 3"}
        assert events[-2] is changed

    play(1, acts())
