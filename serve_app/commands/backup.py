"""`outlast backup` and `outlast restore`: the store in one file, and back."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from runtime.settings import load
from serve_app.commands.exits import Exit
from serve_app.commands.options import data_dir_option, json_option

FILE = click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))


@click.command("backup")
@FILE
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@json_option
@data_dir_option
def backup(file: Path, force: bool, as_json: bool, data_dir: str | None) -> int:
    """Write the store into FILE as it is at this moment: records, logs, transcripts. It may be served meanwhile. Not in
    it: workspaces, what agents print that is not in a log yet, tokens."""
    from serve_app import backups  # noqa: PLC0415 - as `serve` does

    _tell(backups.back_up(load(data_dir=data_dir), file.absolute(), force=force), as_json)
    return Exit.DONE


@click.command("restore")
@FILE
@click.option("--check", "only_check", is_flag=True, help="Only read FILE, and tell what is in it.")
@click.option("--force", is_flag=True, help="Replace a store that has runs.")
@json_option
@data_dir_option
def restore(file: Path, only_check: bool, force: bool, as_json: bool, data_dir: str | None) -> int:
    """Let the store be as it was when FILE was made. No instance may serve it. Offsets of runs that had not ended by
    then are refused from now on (410): what came after the backup is lost."""
    from serve_app import backups  # noqa: PLC0415 - as `serve` does

    path = file.absolute()
    told = backups.check(path) if only_check else backups.restore(load(data_dir=data_dir), path, force=force)
    _tell(told, as_json)
    return Exit.DONE


def _tell(told: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(told))
        return
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(told["madeAt"] / 1000))
    click.echo(
        f"{told['runs']} runs ({told['unfinishedRuns']} of them not ended), {told['chunks']} chunks, {told['bytes']} "
        f"bytes; {told['store']} store of deployment {told['deploymentId']} as of {when}"
    )
    if told.get("newGeneration"):
        click.echo(f"Restored, as generation {told['newGeneration']}. `outlast serve` goes on with it.", err=True)
    if told.get("replaced"):
        click.echo(f"The store that was there is kept as {told['replaced']}.", err=True)
