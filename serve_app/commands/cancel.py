"""`outlast cancel`: stop a run."""

from __future__ import annotations

import click

from runtime.core.record import Status
from serve_app.commands.exits import Exit
from serve_app.commands.options import run_argument, with_instance
from serve_app.http_client import Instance


@click.command("cancel")
@run_argument
@with_instance
def cancel(instance: Instance, run_id: str) -> int:
    """Stop RUN: its agent is ended, and it counts as aborted. A run that has ended stays as it is."""
    record = instance.record(run_id)
    if Status(record["status"]).terminal:
        click.echo(f"run {run_id} has ended already ({record['status']})", err=True)
        return Exit.DONE
    request_cancel(instance, run_id)
    click.echo(f"run {run_id} is being cancelled; watch it end with: outlast tail {run_id} --from now", err=True)
    return Exit.DONE


def request_cancel(instance: Instance, run_id: str) -> None:
    """Have the cancel recorded. Raises Refusal, InstanceNotFound."""
    instance.ask("POST", "/api/chat/cancel", body={"runId": run_id})
