"""Whom the process of hooks tells of an end, and when that is settled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import hook_classes
import pytest
from unit.engine.stage import spec
from waiting import until
from webhook_receiver import SECRET, Receiver, receiving, write_webhooks

from actors import hook_actor, receivers
from actors.hook_actor import UNKNOWN, HookActor
from actors.receivers import STEADY_S, Receivers
from runtime.core.record import Head, Status
from runtime.engine import hook_calls
from runtime.settings import load

HEAD = Head(
    run_id="run-1", thread_id="t", owner="local", digest="d", created_at=1, status=Status.COMPLETED, finished_at=2
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "webhooks"


@pytest.fixture
async def actor(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HookActor]:
    monkeypatch.setenv(hook_classes.FILE, str(tmp_path / "notes"))
    monkeypatch.setattr(receivers, "STEADY_S", 0.0)
    settings = load({}, hooks="hook_classes:Noting,hook_classes:Hanging", webhooks_file=str(file))
    actor = HookActor(settings, "deployment")
    yield actor
    if actor._poster is not None:
        await actor._poster.close()
    if actor._calls is not None:
        await actor._calls.close()


def remove(file: Path) -> None:
    file.unlink()


async def test_names_are_those_who_hear_of_ends_and_follow_the_file(actor: HookActor, file: Path) -> None:
    assert await actor.names() == {"hook:hook_classes:Noting", UNKNOWN}  # hooks go on while the file is bad
    assert "cannot be read" in actor._receivers.trouble
    write_webhooks(file, f"a http://127.0.0.1:9/ {SECRET}")
    assert await actor.names() == {"hook:hook_classes:Noting", "webhook:a"}  # Hanging has only `start`
    write_webhooks(file, f"a http://127.0.0.1:9/ {SECRET}", f"b http://127.0.0.1:9/ {SECRET}")
    assert await actor.names() == {"hook:hook_classes:Noting", "webhook:a", "webhook:b"}
    write_webhooks(file, "broken")
    assert await actor.names() == {"hook:hook_classes:Noting", "webhook:a", "webhook:b"}
    assert "no `<name> <address> <secret>`" in actor._receivers.trouble
    remove(file)
    assert len(await actor.names()) == 3


async def told(actor: HookActor, file: Path, receiver: Receiver) -> bool:
    write_webhooks(file, f"a {receiver.url} {SECRET}")
    await actor.names()
    return await actor.tell("webhook:a", HEAD, spec())


@pytest.mark.parametrize(
    ("status", "settled"),
    [(200, True), (202, True), (301, False), (404, False), (410, True), (429, False), (500, False)],
)
async def test_what_an_answer_settles(actor: HookActor, file: Path, status: int, settled: bool) -> None:
    with receiving(status) as receiver:
        assert await told(actor, file, receiver) is settled
        assert len(receiver.messages()) == 1


async def test_no_answer_settles_nothing_and_a_receiver_that_was_removed_all(actor: HookActor, file: Path) -> None:
    with receiving() as receiver:
        receiver.down()
        assert not await told(actor, file, receiver)
    assert await actor.tell("webhook:gone", HEAD, spec()) is True


async def test_a_hook_is_called_and_that_settles_it(actor: HookActor, file: Path, tmp_path: Path) -> None:
    write_webhooks(file, "# nobody")
    assert await actor.names() == {"hook:hook_classes:Noting"}
    assert await actor.tell("hook:hook_classes:Noting", HEAD, spec()) is True
    assert [name for name, _facts in hook_classes.noted(tmp_path / "notes", "run-1")] == ["finish"]


async def test_a_process_that_has_begun_anew_reads_the_file_before_it_settles_anything(
    actor: HookActor, file: Path
) -> None:
    assert await actor.tell("webhook:a", HEAD, spec()) is False
    assert await actor.tell(UNKNOWN, HEAD, spec()) is False
    with receiving() as receiver:
        write_webhooks(file, f"a {receiver.url} {SECRET}")
        assert await actor.tell("webhook:a", HEAD, spec()) is True
        assert len(receiver.messages()) == 1
    assert await actor.tell(UNKNOWN, HEAD, spec()) is False


async def test_a_hook_that_was_not_called_since_too_many_hang_is_not_settled_and_the_process_is_given_up(
    actor: HookActor, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[bool] = []
    monkeypatch.setattr(hook_actor, "leave", lambda: left.append(True))
    monkeypatch.setattr(hook_actor, "FULL_S", 0.0)
    write_webhooks(file, "# nobody")
    await actor.names()
    actor._leave_if_full()
    assert left == []
    monkeypatch.setattr(hook_calls, "MOST_LEFT", 0)
    assert await actor.tell("hook:hook_classes:Noting", HEAD, spec()) is False
    actor._leave_if_full()
    assert left == [True]


async def test_who_asks_again_waits_for_the_same_call(actor: HookActor, file: Path) -> None:
    with receiving(None, 200) as receiver:
        write_webhooks(file, f"a {receiver.url} {SECRET}")
        await actor.names()
        first = asyncio.create_task(actor.tell("webhook:a", HEAD, spec()))
        await until(lambda: bool(receiver.got), "the post")
        first.cancel()  # whoever asked has gone
        again = asyncio.create_task(actor.tell("webhook:a", HEAD, spec()))
        receiver.let_go.set()
        assert await again is False
        assert len(receiver.got) == 1
        assert await actor.tell("webhook:a", HEAD, spec()) is True
        assert await actor.tell("webhook:a", HEAD, spec()) is True  # that is remembered
        assert len(receiver.got) == 2


# --- the file as it changes ---


class Hand:
    """A clock that is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("meanwhile", ["", "# receivers", f"b http://127.0.0.1:9/ {SECRET}", "b http"])
def test_a_file_that_is_being_written_removes_nobody(file: Path, meanwhile: str) -> None:
    clock = Hand()
    known = Receivers(file, clock)
    lines = [f"a http://127.0.0.1:9/ {SECRET}", f"b http://127.0.0.1:9/ {SECRET}"]
    write_webhooks(file, *lines)
    for clock.now in (0.0, STEADY_S):
        known.look()
    assert known.known
    write_webhooks(file, meanwhile)
    for clock.now in (STEADY_S + 1, 2 * STEADY_S):
        known.look()
        assert known.names == {"a", "b"}
    write_webhooks(file, *lines)
    for clock.now in (2 * STEADY_S + 1, 4 * STEADY_S):
        known.look()
        assert known.names == {"a", "b"}


def test_a_receiver_is_removed_once_the_file_was_seen_without_it_for_some_time(file: Path) -> None:
    clock = Hand()
    known = Receivers(file, clock)
    write_webhooks(file, f"a http://127.0.0.1:9/ {SECRET}", f"b http://127.0.0.1:9/ {SECRET}")
    known.look()
    assert known.names == {"a", "b"}
    assert not known.known  # there may have been others
    write_webhooks(file, "# nobody")
    known.look()
    clock.now = STEADY_S
    known.look()
    assert known.names == frozenset()
    assert known.known


def test_an_empty_file_says_nothing(file: Path) -> None:
    clock = Hand()
    known = Receivers(file, clock)
    write_webhooks(file)
    for clock.now in (0.0, 10 * STEADY_S):
        known.look()
        assert not known.known
    assert "is empty" in known.trouble
