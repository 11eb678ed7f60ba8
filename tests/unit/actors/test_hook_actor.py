"""Whom the process of hooks tells of an end, and when that is settled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import hook_classes
import pytest
from unit.engine.stage import spec
from webhook_receiver import SECRET, Receiver, receiving, write_webhooks

from actors.hook_actor import HookActor
from runtime.core.record import Head, Status
from runtime.errors import InputInvalid
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
    with pytest.raises(InputInvalid, match="cannot be read"):
        await actor.names()
    write_webhooks(file, f"a http://127.0.0.1:9/ {SECRET}")
    assert await actor.names() == {"hook:hook_classes:Noting", "webhook:a"}  # Hanging has only `start`
    write_webhooks(file, f"a http://127.0.0.1:9/ {SECRET}", f"b http://127.0.0.1:9/ {SECRET}")
    assert await actor.names() == {"hook:hook_classes:Noting", "webhook:a", "webhook:b"}
    write_webhooks(file, "broken")
    assert await actor.names() == {"hook:hook_classes:Noting", "webhook:a", "webhook:b"}
    assert "no `<name> <address> <secret>`" in actor._trouble
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
    write_webhooks(file)
    await actor.names()
    assert await actor.tell("hook:hook_classes:Noting", HEAD, spec()) is True
    assert [name for name, _facts in hook_classes.noted(tmp_path / "notes", "run-1")] == ["finish"]
