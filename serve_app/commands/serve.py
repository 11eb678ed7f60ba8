"""`outlast serve`: run an instance in the foreground."""

from __future__ import annotations

import click

from runtime.settings import load
from serve_app.commands.options import data_dir_option


@click.command("serve")
@click.option("--host", metavar="HOST", help="Address to listen on.  [default: OUTLAST_HOST, else 127.0.0.1]")
@click.option("--port", metavar="PORT", type=click.IntRange(1, 65535), help="[default: OUTLAST_PORT, else 8000]")
@data_dir_option
def serve(host: str | None, port: int | None, data_dir: str | None) -> int:
    """Run an instance, until Ctrl-C or `outlast stop`. Every setting is an environment variable OUTLAST_..."""
    settings = load(host=host, port=port, data_dir=data_dir)
    from serve_app import instance  # noqa: PLC0415 - it imports Ray: two seconds that no other command shall take

    return instance.serve(settings)
