"""`outlast show`: the record of one run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from serve_app.commands.exits import Exit
from serve_app.commands.options import json_option, run_argument, with_instance
from serve_app.http_client import Instance
from serve_app.render import brief


@click.command("show")
@run_argument
@json_option
@with_instance
def show(instance: Instance, run_id: str, as_json: bool) -> int:
    """Show the record of RUN: how it stands, how it ended, and who drove it when."""
    record = instance.record(run_id)
    if as_json:
        click.echo(json.dumps(record, ensure_ascii=False).encode(errors="replace"))
    else:
        click.echo("\n".join(lines(record)))
    return Exit.DONE


def lines(record: dict[str, Any]) -> Iterator[str]:
    """Yield the record for a person; what is not set is left out."""
    error = record.get("error")
    facts = {
        "run": record["runId"],
        "thread": record["threadId"],
        "status": standing(record),
        "harness": record.get("harness"),
        "created": moment(record.get("createdAt")),
        "started": moment(record.get("startedAt")),
        "finished": moment(record.get("finishedAt")),
        "error": f"{brief(error['message'], 500)} ({error['code']})" if error else None,
        "exit code": record.get("exitCode"),
        "signal": record.get("signal"),
        "detached since": moment(record.get("detachedSince")),
        "sandbox": record.get("sandboxKey"),
        "kept until": moment(record.get("sandboxKeptUntil")),
        "chunks": record.get("chunks"),
        "usage": json.dumps(record["usage"]) if record.get("usage") else None,
    }
    yield from (f"{name:<15}{value}" for name, value in facts.items() if value is not None)
    yield from table("claims", [CLAIM_TITLES, *map(claim_row, record.get("claims") or [])])
    yield from table("refused", [REFUSAL_TITLES, *map(refusal_row, record.get("refusals") or [])])


MINUTE_S = 60
CLAIM_TITLES = ("epoch", "reason", "claimed", "pause", "held", "chunks", "node", "pid", "ended")
REFUSAL_TITLES = ("epoch", "tried", "times", "last", "driven by epoch")


def claim_row(claim: dict[str, Any]) -> tuple[str, ...]:
    """Return one driver's line; `pause` is how long nothing came before its first chunk."""
    ended = claim.get("endedAt")
    return (
        str(claim["epoch"]),
        str(claim["reason"]),
        moment(claim["claimedAt"]) or "-",
        span(claim.get("pauseMs")),
        span(ended - claim["claimedAt"] if ended is not None else None),
        str(claim["chunks"]),
        str(claim.get("nodeId") or "-")[:8],
        str(claim.get("pid") or "-"),
        str(claim.get("end") or "-").replace("_", " "),
    )


def refusal_row(refusal: dict[str, Any]) -> tuple[str, ...]:
    """Return a line of what a driver tried that was no longer the run's."""
    last = moment(refusal["lastAt"]) or "-"
    return str(refusal["epoch"]), refusal["tried"], str(refusal["count"]), last, str(refusal["currentEpoch"])


def table(name: str, rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield titles and rows in columns, `name` before the titles; nothing if there are only titles."""
    if not rows[1:]:
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for place, row in enumerate(rows):
        cells = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        yield f"{'' if place else name:<15}{cells}".rstrip()


def span(time_ms: int | None) -> str:
    """Return a length of time for a person."""
    if time_ms is None:
        return "-"
    seconds = time_ms / 1000
    if seconds < MINUTE_S:
        return f"{seconds:.2f} s"
    minutes, seconds = divmod(round(seconds), MINUTE_S)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def standing(record: dict[str, Any]) -> str:
    """Return the status, and what of it is under way."""
    status = str(record["status"])
    if record.get("queued"):
        return f"{status} (queued)"
    return f"{status} (cancelling)" if record.get("cancelRequested") and status == "running" else status


def moment(time_ms: int | None) -> str | None:
    """Return a time for a person, in UTC."""
    if time_ms is None:
        return None
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
