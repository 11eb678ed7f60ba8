"""`outlast stop`: end an instance of this machine. Agents go on, and the next `serve` picks them up."""

from __future__ import annotations

import os
import select
import signal
import time

import click

from runtime import process
from runtime.core.record import Status
from runtime.errors import InstanceNotFound
from runtime.process import ProcessIdentity
from runtime.settings import load
from serve_app import instance_file
from serve_app.commands.cancel import request_cancel
from serve_app.commands.draining import LONGEST_S, WITHIN_S, StillOn, drain_node
from serve_app.commands.exits import Exit
from serve_app.commands.options import data_dir_option
from serve_app.commands.ps import runs
from serve_app.http_client import Instance
from serve_app.trials import Patience

GONE_S = 60.0  # `serve` promises 30
ENDED_S = 60.0  # a cancel takes 4 s, 10 s with its host unreachable, and a queued run waits for the one before it
LOOK_S = 0.2


class StillThere(Exception):
    """What was to end did not."""


@click.command("stop")
@click.option("--cancel-runs", is_flag=True, help="Cancel every run that has not ended first, and wait for that.")
@click.option("--node", metavar="N", help="Stop this node only: what runs on it goes elsewhere first.")
@click.option("--within", type=click.IntRange(0, LONGEST_S), default=WITHIN_S, show_default=True, help="For --node.")
@data_dir_option
@click.pass_obj
def stop(patience: Patience | None, cancel_runs: bool, node: str | None, within: int, data_dir: str | None) -> int:
    """Stop the instance of the data directory. Its agents go on, unless --cancel-runs is given; the next serve picks
    them up.

    With --node, drain that node of its cluster instead: N is its id (or the beginning), address or host name. What
    cannot be moved stays, and is named, if it is still there after --within seconds."""
    settings = load(data_dir=data_dir)
    info = instance_file.read(settings.data_path)
    if info is None or not info.alive:
        raise InstanceNotFound(f"No instance runs in {settings.data_path}: there is nothing to stop.")
    try:
        if node is not None:
            with Instance(settings, patience=patience) as instance:
                drain_node(instance, node, within)
            return Exit.DONE
        if cancel_runs:
            with Instance(settings, patience=patience) as instance:
                cancel_all(instance)
        end(info.process)
    except (StillThere, StillOn) as error:
        click.echo(f"outlast: {error}", err=True)
        return Exit.REFUSED
    click.echo("stopped", err=True)
    return Exit.DONE


def cancel_all(instance: Instance, within_s: float = ENDED_S) -> None:
    """Cancel every run that has not ended, those that come meanwhile too, and return when there is none.

    Raises StillThere, Refusal, InstanceNotFound."""
    deadline = time.monotonic() + within_s
    told: set[str] = set()
    while left := unfinished(instance):
        for run_id in left:
            if run_id not in told:
                click.echo(f"cancelling run {run_id}", err=True)
                request_cancel(instance, run_id)
                told.add(run_id)
        if time.monotonic() > deadline:
            raise StillThere(f"These runs did not end, so the instance was not stopped: {', '.join(left)}.")
        time.sleep(LOOK_S)


def unfinished(instance: Instance) -> list[str]:
    """Return the ids of the runs that have not ended. Raises Refusal, InstanceNotFound."""
    return [
        str(record["runId"])
        for status in Status
        if not status.terminal
        for record in runs(instance, status=status.value)
    ]


def end(who: ProcessIdentity, within_s: float = GONE_S) -> None:
    """Ask the process to end, and return when it has gone. Raises StillThere."""
    handle = process.open_pidfd(who.pid)
    if handle is None:
        return
    try:
        if not process.send(who, signal.SIGTERM):
            return
        watch = select.poll()
        watch.register(handle, select.POLLIN)
        if not watch.poll(within_s * 1000):
            raise StillThere(f"Process {who.pid} has not ended within {within_s:.0f} s. What it says last is why.")
    except PermissionError:
        raise StillThere(f"Process {who.pid} belongs to another user: stop it as that user.") from None
    finally:
        os.close(handle)
