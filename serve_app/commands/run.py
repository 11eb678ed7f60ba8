"""`outlast run`: start a run, or join it, and follow it."""

from __future__ import annotations

import json
import math
import sys
import uuid
from collections.abc import Callable
from contextlib import closing
from typing import Any, NoReturn

import click

from serve_app.commands.exits import Exit
from serve_app.commands.following import follow, show_for
from serve_app.commands.options import RUN_ID, THREAD_ID, json_option, with_instance
from serve_app.http_client import Instance
from serve_app.stream_client import RunStream


@click.command("run")
@click.argument("message", metavar="MESSAGE|-")
@click.option("--harness", metavar="NAME", help="Which kind of agent.  [default: the instance's]")
@click.option("--thread", metavar="ID", type=THREAD_ID, help="The conversation.  [default: a new one]")
@click.option("--run", "run_id", metavar="ID", type=RUN_ID, help="The run's id.  [default: a new one]")
@click.option("--option", "options", metavar="K=V", multiple=True, help="An option of the run; V is JSON or a text.")
@click.option("--detach", is_flag=True, help="Only start it: print its id, and leave.")
@json_option
@with_instance
def run(
    instance: Instance,
    message: str,
    harness: str | None,
    thread: str | None,
    run_id: str | None,
    options: tuple[str, ...],
    detach: bool,
    as_json: bool,
) -> int:
    """Start a run of an agent with MESSAGE (- reads it from standard input) and show what it says.

    Ctrl-C leaves the run alone and says how to come back. The same command with the same --run joins that run."""
    props = read_options(options)
    if harness is not None:
        props["harness"] = harness
    run_id = run_id or f"run-{uuid.uuid4()}"
    # Derived, so that the same command again is the same request.
    thread = thread or f"thread-{uuid.uuid5(uuid.NAMESPACE_OID, run_id)}"
    body = request_body(run_id, thread, read_message(message), props)
    show = show_for(as_json)
    tell = once(lambda: show.note(f"run {run_id} in thread {thread}"))

    def notice(text: str) -> None:
        tell()  # it may have begun, and a person must know what to come back to
        show.note(text)

    stream = RunStream(instance, run_id, body=body, notice=notice, begun=tell)
    if not detach:
        return follow(stream, show)
    with closing(stream.batches()) as batches:
        first = next(batches, [])
    if as_json:
        show.batch(first)
    else:
        click.echo(run_id)
    show.note(f"Started. Watch it with: outlast tail {run_id}")
    return Exit.DONE


def once(say: Callable[[], None]) -> Callable[[], None]:
    """Return `say` as something that is done the first time only."""
    left = [say]

    def saying() -> None:
        while left:
            left.pop()()

    return saying


def read_message(argument: str) -> str:
    """Return the message itself. Raises click.UsageError for an empty one, or one that is no text."""
    if argument == "-":
        try:
            text = sys.stdin.buffer.read().decode()
        except UnicodeDecodeError:
            raise click.UsageError("The message on standard input is not UTF-8 text.") from None
    else:
        text = argument
    if not text.strip():
        raise click.UsageError("The message is empty: say what the agent shall do.")
    return text


def read_options(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Return the options by name; a value that is not JSON is a text. Raises click.UsageError."""
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--option {pair!r} is not K=V: write it as --option model=NAME.")
        if name in options:
            raise click.UsageError(f"--option {name} is given twice: give it once.")
        options[name] = _value(text)
    return options


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_float)
    except (ValueError, RecursionError):
        return text


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)


def _float(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text)


def request_body(run_id: str, thread: str, message: str, props: dict[str, Any]) -> bytes:
    """Return the AG-UI RunAgentInput. Raises click.UsageError for text that is not UTF-8."""
    body = {
        "threadId": thread,
        "runId": run_id,
        "messages": [{"id": f"msg-{run_id}", "role": "user", "content": message}],
        "tools": [],
        "context": [],
        "state": {},
        "forwardedProps": props,
    }
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise click.UsageError("The message or an option is not UTF-8 text.") from None
