"""Follow one run to its end for `run` and `tail`, and say how it ended or how to come back."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Any

from runtime.core import chunk
from runtime.core.record import Status
from serve_app.commands.exits import OF_STATUS, Exit
from serve_app.render import LinesShow, Show, TextShow, brief
from serve_app.stream_client import RunStream

# Codes of a terminal RUN_ERROR that mean that somebody stopped the run (design 4).
STOPPED = frozenset({"aborted", "detached_expired"})


def show_for(as_json: bool) -> Show:
    """Return where the stream goes."""
    show = LinesShow if as_json else TextShow
    return show(sys.stdout.buffer, sys.stderr)


def follow(stream: RunStream, show: Show, until: int | None = None) -> Exit:
    """Show the stream, to its end or to position `until`, and return how the run stands. Ctrl-C only detaches."""
    try:
        with closing(stream.batches()) as batches:
            for batch in batches:
                surplus = 0 if until is None else max(0, stream.position - until)
                show.batch(batch[: len(batch) - surplus])
                if until is not None and stream.position >= until:
                    return Exit.DONE
    except KeyboardInterrupt:
        show.end()
        show.note(way_back(stream))
        return Exit.DETACHED
    show.end()
    return report(stream, show)


def way_back(stream: RunStream) -> str:
    """Return how to come back to a run that goes on."""
    here = f" (from here: --from {stream.last_id})" if stream.last_id else ""
    return f"Detached. The run goes on; come back with: outlast tail {stream.run_id}{here}"


def report(stream: RunStream, show: Show) -> Exit:
    """Say how the run ended."""
    if stream.record is not None:
        return report_record(stream.record, show)
    terminal = stream.terminal or {}
    status = Status.COMPLETED
    if terminal.get("type") == chunk.RUN_ERROR:
        status = Status.ABORTED if terminal.get("code") in STOPPED else Status.FAILED
    return report_record({"runId": stream.run_id, "status": status.value, "error": terminal}, show)


def report_record(record: dict[str, Any], show: Show) -> Exit:
    """Say how the run of `record` stands, and return its exit code."""
    status = str(record["status"])
    error = record.get("error") or {}
    why = f": {brief(error['message'], 500)} ({error.get('code')})" if error.get("message") else ""
    show.note(f"run {record['runId']} {status}{why}")
    return OF_STATUS.get(status, Exit.FAILED)
