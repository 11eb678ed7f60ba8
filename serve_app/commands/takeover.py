"""`outlast takeover`: replace the driver of a run."""

from __future__ import annotations

import click

from serve_app.commands.exits import Exit
from serve_app.commands.options import run_argument, with_instance
from serve_app.http_client import Instance


@click.command("takeover")
@run_argument
@with_instance
def takeover(instance: Instance, run_id: str) -> int:
    """Have another driver take RUN over, now. Its agent goes on, and who watches sees a short pause."""
    answer = instance.ask("POST", f"/api/runs/{run_id}/takeover", body={})
    click.echo(f"run {run_id}: the driver of epoch {answer['fromEpoch']} is being replaced", err=True)
    return Exit.DONE
