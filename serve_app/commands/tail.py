"""`outlast tail`: come back to a run."""

from __future__ import annotations

import click

from runtime.core.ids import START, Offset
from serve_app.commands.following import follow, report_record, show_for
from serve_app.commands.options import checked, json_option, run_argument, with_instance
from serve_app.http_client import Instance
from serve_app.stream_client import RunStream

NOW = "now"


@checked
def place(text: str) -> Offset | str:
    """Return the offset, or NOW."""
    return Offset.parse(text) or NOW


@click.command("tail")
@run_argument
@click.option("--from", "start", metavar="OFFSET", type=place, help="Only what follows; `now`: only what comes.")
@click.option("--no-follow", is_flag=True, help="Stop at what is there now.")
@json_option
@with_instance
def tail(instance: Instance, run_id: str, start: Offset | str | None, no_follow: bool, as_json: bool) -> int:
    """Show RUN from its beginning, and follow it to its end. Ctrl-C leaves the run alone."""
    show = show_for(as_json)
    record = instance.record(run_id)
    stored = int(record["chunks"])
    # `now` is made a place at once: a connection that breaks before the first chunk comes back to it.
    after = start if isinstance(start, Offset) else Offset(0, stored) if start == NOW else START
    stream = RunStream(instance, run_id, after=after, notice=show.note)
    if not no_follow:
        return follow(stream, show)
    if after.position != stored and (ended := follow(stream, show, until=stored)):
        return ended
    show.end()
    return report_record(record, show)
