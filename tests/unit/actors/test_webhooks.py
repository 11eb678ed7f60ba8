"""A post of a run's end: signed as the library of the specification checks it, and sent to no other address."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from standardwebhooks.webhooks import WebhookVerificationError
from unit.engine.stage import spec
from waiting import until
from webhook_receiver import OLD_SECRET, SECRET, Receiver, receiving, write_webhooks

from actors import webhook_post
from actors.webhook_post import MOST_AT_ONCE, NoAnswer, Poster, body_of, webhook_id
from actors.webhooks_file import Endpoint, read_webhooks
from runtime.core.record import Head, RunError, Status
from runtime.errors import InputInvalid
from runtime.hooks import RunFacts

HEAD = Head(
    run_id="ann@run-1",
    thread_id="thread-1",
    owner="ann",
    digest="d",
    created_at=1,
    status=Status.FAILED,
    finished_at=1_700_000_000_123,
    error=RunError(message="Grüße", code="agent_exit"),
    usage={"modèle": 2**60},
)
DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "hooks.md"
BODY = body_of(RunFacts.of(HEAD, spec()))
ID = webhook_id("deployment", HEAD.run_id)


@pytest.fixture
async def poster() -> AsyncIterator[Poster]:
    poster = Poster()
    yield poster
    await poster.close()


def endpoint(receiver: Receiver, *secrets: str) -> Endpoint:
    return Endpoint(name="billing", url=receiver.url, secrets=secrets or (SECRET,))


async def test_a_receiver_verifies_it_with_the_library(poster: Poster) -> None:
    with receiving() as receiver:
        assert await poster.post(endpoint(receiver), ID, BODY) == 200
        (message,) = receiver.messages()
        assert message["type"] == "run.ended"
        assert message["timestamp"] == "2023-11-14T22:13:20.123Z"
        data = message["data"]
        assert (data["runId"], data["owner"], data["status"], data["code"]) == ("run-1", "ann", "failed", "agent_exit")
        assert data["usage"] == {"modèle": 2**60}
        with pytest.raises(WebhookVerificationError):
            receiver.messages(OLD_SECRET)
        headers, body = receiver.got[0]
        receiver.got = [(headers, body.replace(b"failed", b"paid!!"))]
        with pytest.raises(WebhookVerificationError):
            receiver.messages()


async def test_two_secrets_make_two_signatures(poster: Poster) -> None:
    with receiving() as receiver:
        await poster.post(endpoint(receiver, SECRET, OLD_SECRET), ID, BODY)
        assert receiver.messages(SECRET) == receiver.messages(OLD_SECRET) == [json.loads(BODY)]


def test_the_id_is_the_ends_own() -> None:
    assert webhook_id("deployment", "ann@run-1") == ID
    others = (
        webhook_id("deployment", "run-1"),
        webhook_id("another", "ann@run-1"),
        webhook_id("deployment", "ann@run-1", 7),
    )
    assert len({ID, *others}) == 4
    assert body_of(RunFacts.of(HEAD, spec())) == BODY


async def test_a_redirect_is_not_followed_and_no_proxy_used(poster: Poster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with receiving() as elsewhere, receiving(307) as receiver:
        receiver.headers = {"Location": elsewhere.url}
        fresh = Poster()
        assert await fresh.post(endpoint(receiver), ID, BODY) == 307
        await fresh.close()
        assert elsewhere.got == []


async def test_who_is_down_or_does_not_answer_is_told_apart_from_an_answer(
    poster: Poster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_post, "POST_S", 0.3)
    with receiving(None) as receiver:
        with pytest.raises(NoAnswer, match="TimeoutError"):
            await poster.post(endpoint(receiver), ID, BODY)
        receiver.down()
        with pytest.raises(NoAnswer, match="Connect"):
            await poster.post(endpoint(receiver), ID, BODY)


async def test_receivers_share_no_cookies_and_the_log_holds_no_address(
    poster: Poster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with receiving() as receiver:
        receiver.headers = {"Set-Cookie": "a=tracked; Path=/"}
        for name in ("one", "two"):
            secret = Endpoint(name=name, url=f"{receiver.url}/{name}?key=hunter2", secrets=(SECRET,))
            assert await poster.post(secret, ID, BODY) == 200
        assert [headers.get("cookie") for headers, _body in receiver.got] == [None, None]
    assert "hunter2" not in caplog.text


async def test_a_name_that_cannot_be_looked_up_takes_no_thread_from_another_receiver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look_up, let_go, hanging = socket.getaddrinfo, threading.Event(), threading.Semaphore(0)

    def slow(host: Any, *args: Any, **more: Any) -> Any:
        if "hang" in str(host):
            hanging.release()
            let_go.wait()
            raise socket.gaierror("time out")
        return look_up(host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    poster = Poster()
    with receiving() as receiver:
        bad = [Endpoint(name=f"bad{at}", url=f"http://hang{at}.example/", secrets=(SECRET,)) for at in range(4)]
        posts = [asyncio.create_task(poster.post(one, ID, BODY)) for one in bad for _ in range(MOST_AT_ONCE)]
        await until(lambda: hanging._value == len(posts), "all look-ups")  # more than the default has threads
        good = Endpoint(name="good", url=receiver.url.replace("127.0.0.1", "localhost"), secrets=(SECRET,))
        assert await poster.post(good, ID, BODY) == 200
        let_go.set()
        assert all(isinstance(one, NoAnswer) for one in await asyncio.gather(*posts, return_exceptions=True))
    await poster.close()


def test_the_body_is_the_same_whoever_looks_meanwhile() -> None:
    seen = msgspec.structs.replace(HEAD, detached_since=None)
    unseen = msgspec.structs.replace(HEAD, detached_since=5)
    assert body_of(RunFacts.of(seen, spec())) == body_of(RunFacts.of(unseen, spec()))


def posted(**changes: Any) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(body_of(RunFacts.of(msgspec.structs.replace(HEAD, **changes), spec())))["data"]
    return data


@pytest.mark.parametrize("code", ["Überfall", "x" * 65, "rm -rf", "", "a\nb"])
def test_a_code_that_is_none_is_posted_as_another(code: str) -> None:
    assert posted(error=RunError(message="m", code=code))["code"] == "agent_error"


def test_of_usage_numbers_and_short_strings_are_posted() -> None:
    usage = {
        "in": 1,
        "cost": 0.5,
        "tier": "x" * 128,
        "text": "x" * 129,
        "list": [1],
        "none": None,
        "models": {"m": {"in": 2}},
    }
    assert posted(usage=usage)["usage"] == {"in": 1, "cost": 0.5, "tier": "x" * 128, "models": {"m": {"in": 2}}}
    assert posted(usage={"a": {"b": {"c": {"d": 1}}}})["usage"] == {"a": {"b": {}}}
    assert posted(usage={str(number): number for number in range(1000)})["usage"] is None


# --- the file ---


def test_the_file_names_receivers(tmp_path: Path) -> None:
    path = tmp_path / "webhooks"
    lines = (
        "# comment",
        "",
        f"a https://example.org/x?y=1 {SECRET} {OLD_SECRET}",
        f"b.2 http://10.0.0.7:9000 {SECRET}",
    )
    write_webhooks(path, *lines)
    first, second = read_webhooks(path)
    assert (first.name, first.url, first.secrets) == ("a", "https://example.org/x?y=1", (SECRET, OLD_SECRET))
    assert second.name == "b.2"
    assert SECRET not in repr((first, second))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a https://example.org", "line 1 no `<name> <address> <secret>`"),
        (f"a/b https://example.org {SECRET}", "line 1 no `<name> <address> <secret>`"),
        (f"a ftp://example.org {SECRET}", "no http or https address"),
        (f"a https:///x {SECRET}", "no http or https address"),
        (f"a https://u:p@example.org {SECRET}", "no http or https address"),
        (f"a https://example.org/#x {SECRET}", "no http or https address"),
        (f"a https://example.org:99999 {SECRET}", "no http or https address"),
        ("a https://example.org hunter2", "line 1 a secret that is not"),
        ("a https://example.org whsec_QUJD", "line 1 a secret that is not"),
        ("a https://example.org whsec_!!!!", "line 1 a secret that is not"),
        (f"a https://example.org {SECRET}\na https://example.org {SECRET}", "the name a twice"),
    ],
)
def test_what_is_wrong_is_refused_and_no_secret_quoted(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "webhooks"
    write_webhooks(path, line)
    with pytest.raises(InputInvalid, match="OUTLAST_WEBHOOKS_FILE") as refused:
        read_webhooks(path)
    assert said in refused.value.message
    assert "hunter2" not in refused.value.message
    assert SECRET not in refused.value.message


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "webhooks"
    write_webhooks(path, f"a https://example.org {SECRET}")
    for mode in (0o640, 0o604, 0o620):
        path.chmod(mode)
        with pytest.raises(InputInvalid, match="holds secrets"):
            read_webhooks(path)
    with pytest.raises(InputInvalid, match="cannot be read"):
        read_webhooks(tmp_path / "missing")


async def test_the_example_of_the_docs_checks_what_is_posted(poster: Poster) -> None:
    text = DOCUMENT.read_text()
    (example,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "Webhook(" in block]
    there: dict[str, Any] = {}
    exec(example, there)  # noqa: S102 - the documentation, word for word
    with receiving() as receiver:
        await poster.post(endpoint(receiver), ID, BODY)
        headers, body = receiver.got[0]
    message = there["receive"](body, headers)
    assert message == json.loads(BODY)
    (shown,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    assert json.loads(shown).keys() == message.keys()
    assert json.loads(shown)["data"].keys() == message["data"].keys()
