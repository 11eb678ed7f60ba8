"""`outlast show`: the record of one run."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
        "chunks": record.get("chunks"),
        "usage": json.dumps(record["usage"]) if record.get("usage") else None,
    }
    yield from (f"{name:<15}{value}" for name, value in facts.items() if value is not None)
    claims = record.get("claims") or []
    if claims:
        yield f"{'claims':<15}epoch  reason         claimed                  chunks  pid"
    for claim in claims:
        when = moment(claim["claimedAt"]) or "-"
        pid = claim.get("pid") or "-"
        yield f"{'':<15}{claim['epoch']:<7}{claim['reason']:<15}{when:<25}{claim['chunks']:<8}{pid}"


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
