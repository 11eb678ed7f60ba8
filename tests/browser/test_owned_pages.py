"""What pages may see by the cookie of a session: what is its owner's, and nothing else. They are of another origin of
the same site."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from chat_page import ChatTab, Thread
from unit.serve_app.test_owners import ALICE, BOB, THEIRS, guarded
from unit.serve_app.wire import served as serving

pytestmark = pytest.mark.timeout(300)  # the first test of its lane starts the instance and the browser


def _sign_in(tab: ChatTab, url: str, token: str) -> None:
    """Have the page begin a session, as a page of one's own would."""
    asked = f"{{method: 'POST', credentials: 'include', headers: {{Authorization: 'Bearer {token}'}}}}"
    assert tab.call("evaluate", f"fetch('{url}/api/session', {asked}).then((answer) => answer.status)") == 200


def _look(thread: Thread) -> None:
    """See what nobody sees, then another owner, then the owner."""
    tab = thread.open("owned-stream", run=THEIRS)
    tab.wait_for("window.ended", True)
    _sign_in(tab, thread.url, BOB)
    tab.reload()
    tab.wait_for("window.ended", True)
    tab.wait_for("window.shown", [])
    hydrate = f"fetch('{thread.url}/api/chat?threadId={THEIRS}', {{credentials: 'include'}})"
    assert tab.call("evaluate", f"{hydrate}.then((answer) => answer.json())")["messages"] == []
    _sign_in(tab, thread.url, ALICE)
    tab.reload()
    tab.wait_for("window.shown.map((chunk) => chunk.type)", ["CUSTOM", "TEXT_MESSAGE_CONTENT"])
    thread.open("owned-chat", thread=THEIRS).shows("echo hi", "hers")


async def test_a_cookie_shows_event_source_and_chat_what_is_their_owners(thread: Thread, tmp_path: Path) -> None:
    async with (
        guarded(tmp_path, allowed_origins=thread.browser.origin, tokens_file=str(tmp_path / "tokens")) as w,
        serving(w.app) as wire,
    ):
        thread.url = f"http://127.0.0.1:{wire.port}"
        await (await w.driver(f"alice@{THEIRS}")).say("hers")
        await asyncio.to_thread(_look, thread)
