"""`outlast ps`: the runs that there are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import click

from runtime.core.record import Status
from serve_app.commands.exits import Exit
from serve_app.commands.options import THREAD_ID, json_option, with_instance
from serve_app.commands.show import moment, standing
from serve_app.http_client import Instance

PAGE = 100


@click.command("ps")
@click.option("--status", type=click.Choice([status.value for status in Status]), help="Only runs that stand so.")
@click.option("--thread", metavar="ID", type=THREAD_ID, help="Only runs of this conversation.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="At most so many.")
@json_option
@with_instance
def ps(instance: Instance, status: str | None, thread: str | None, limit: int, as_json: bool) -> int:
    """List runs, newest first."""
    found = list(islice(runs(instance, status=status, thread=thread, page=min(limit + 1, PAGE)), limit + 1))
    shown = found[:limit]
    if as_json:
        click.echo(json.dumps(shown, ensure_ascii=False).encode(errors="replace"))
    else:
        click.echo("\n".join(table(shown)))
        if len(found) > limit:
            click.echo(f"There are more than {limit}: --limit shows more.", err=True)
    return Exit.DONE


def runs(
    instance: Instance, *, status: str | None = None, thread: str | None = None, page: int = PAGE
) -> Iterator[dict[str, Any]]:
    """Yield records, newest first, page by page. Raises Refusal, InstanceNotFound."""
    params = {"limit": str(page)}
    if status is not None:
        params["status"] = status
    if thread is not None:
        params["threadId"] = thread
    while True:
        answer = instance.ask("GET", "/api/runs", params=params)
        yield from answer["runs"]
        if answer["next"] is None:
            return
        params["cursor"] = answer["next"]


def table(records: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a table as wide as its ids need."""
    rows = [("RUN", "THREAD", "STATUS", "HARNESS", "CREATED")]
    rows += [
        (
            str(record["runId"]),
            str(record["threadId"]),
            standing(record),
            str(record.get("harness")),
            moment(record.get("createdAt")) or "-",
        )
        for record in records
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
