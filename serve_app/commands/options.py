"""What several commands take, and how it is checked: always before anything is asked of an instance."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import click

from runtime.core.ids import RunId, RunKey, ThreadId
from runtime.errors import InputInvalid
from runtime.settings import load
from serve_app.http_client import Instance
from serve_app.trials import Patience

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

data_dir_option = click.option(
    "--data-dir", metavar="DIR", help="The instance's data directory.  [default: OUTLAST_DATA_DIR, else ./.outlast]"
)
json_option = click.option("--json", "as_json", is_flag=True, help="For programs: JSON on stdout.")


def checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return `parse` as the type of an argument: it checks by the rule that the instance checks by."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except InputInvalid as error:
            raise click.BadParameter(f"{text!r}: {error.message}") from None

    return convert


RUN_ID = checked(RunId.parse)
THREAD_ID = checked(ThreadId.parse)

# Of a run that is there: the operator names that of another owner by its key.
run_argument = click.argument("run_id", metavar="RUN", type=checked(RunKey.parse))


def with_instance(command: Callable[Concatenate[Instance, P], R]) -> Callable[..., R]:
    """Give `command` its instance, as --url and --data-dir say, and close it afterwards."""

    @click.option("--url", metavar="URL", help="Where the instance answers.  [default: what its instance.json says]")
    @data_dir_option
    @click.pass_obj
    @functools.wraps(command)
    def inner(
        patience: Patience | None, /, url: str | None, data_dir: str | None, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        with Instance(load(data_dir=data_dir), url, patience) as instance:
            return command(instance, *args, **kwargs)

    return inner
