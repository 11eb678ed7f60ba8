"""`outlast reap`: end now what nobody came back for, and tell what became of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from serve_app.commands.exits import Exit
from serve_app.commands.options import json_option, with_instance
from serve_app.http_client import Instance


@click.command("reap")
@click.option("--dry-run", is_flag=True, help="Only tell what would be done.")
@json_option
@with_instance
def reap(instance: Instance, dry_run: bool, as_json: bool) -> int:
    """Sweep once, as the instance does by itself every OUTLAST_REAP_INTERVAL_S: end the runs that nobody came back for
    in their time, tell what became of those that ended while nobody watched, and remove what is not kept any more."""
    report = instance.ask("POST", "/api/reap", params={"dryRun": "true" if dry_run else "false"})
    if as_json:
        click.echo(json.dumps(report, ensure_ascii=False).encode(errors="replace"))
    else:
        click.echo("\n".join(lines(report)))
    return Exit.DONE


def lines(report: dict[str, Any]) -> Iterator[str]:
    """Yield what a person wants to know of a report."""
    for run in report["runs"]:
        facts = [str(run[name]) for name in ("status", "error") if run[name] is not None]
        if run["exitCode"] is not None:
            facts.insert(1, f"exit code {run['exitCode']}")
        yield f"{run['runId']}  {run['outcome']}" + (f"  ({', '.join(facts)})" if facts else "")
    counts = [f"{count} {outcome}" for outcome, count in report["outcomes"].items() if count]
    would = ", only looked" if report["dryRun"] else ""
    yield f"{report['considered']} detached runs{would}: {', '.join(counts) or 'nothing to do'}"
    pruned = [f"{count} {what}" for what, count in report["pruned"].items() if count]
    if pruned:
        yield f"{'to remove' if report['dryRun'] else 'removed'}, too old to be kept: {', '.join(pruned)}"
    yield from (f"kept {key}: {why}" for key, why in report["kept"].items())
    yield from (f"left out: {failure}" for failure in report["failures"])
