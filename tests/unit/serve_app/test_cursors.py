"""An owner's cursors: pages follow each other, and what she is given tells her nothing."""

from __future__ import annotations

from pathlib import Path

from unit.serve_app.asgi_client import Call, chat_body, fetch, post
from unit.serve_app.test_owners import ALICE, BOB, OPERATOR, THEIRS, guarded, of


async def test_a_page_of_an_owner_says_nothing_of_how_many_runs_others_have(tmp_path: Path) -> None:
    async with guarded(tmp_path) as w:
        for number in range(2, 4):
            body = chat_body(f"t-{number}", runId=f"r-{number}")
            call = await post(w.app, f"r-{number}", json_body=body, headers=of(ALICE)).has(b"run.accepted")
            call.leave()

        async def page(token: str, **query: str) -> Call:
            return await fetch(w.app, "GET", "/api/runs", query={"limit": "1", **query}, headers=of(token))

        nexts: set[str] = set()
        runs: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            told = (await page(ALICE, **cursor)).json()
            runs += [record["runId"] for record in told["runs"]]
            nexts |= {(await page(ALICE, **cursor)).json()["next"] for _ in range(2) if told["next"]}
            if told["next"] is None:
                break
            cursor = {"cursor": told["next"]}
        assert runs == ["r-3", "r-2", THEIRS]
        assert len(nexts) == 4, "the same place is never told alike"
        assert {len(each) for each in nexts} == {64}
        operators = (await page(OPERATOR)).json()["next"]
        tampered = nexts.copy().pop()
        tampered = tampered[:20] + ("A" if tampered[20] != "A" else "B") + tampered[21:]
        for token, wrong in ((BOB, nexts.pop()), (ALICE, operators), (ALICE, tampered), (ALICE, "ü" * 64)):
            refused = await page(token, cursor=wrong)
            assert (refused.status, refused.code) == (400, "cursor_invalid")
