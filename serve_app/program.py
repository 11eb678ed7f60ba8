"""The commands of `outlast` and what holds for all of them. Each command is a module of `serve_app/commands/`.

A command returns its exit code (`commands/exits.py`) or raises; an error is one line on stderr that says what to do.
No command but `serve` imports Ray, FastAPI or pydantic: `outlast ps` answers in a quarter of a second.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from importlib import metadata
from typing import Any, NoReturn

import click

from runtime.errors import OutlastError
from serve_app.commands.backup import backup, restore
from serve_app.commands.cancel import cancel
from serve_app.commands.doctor import doctor
from serve_app.commands.exits import Exit, of_error
from serve_app.commands.ps import ps
from serve_app.commands.reap import reap
from serve_app.commands.run import run
from serve_app.commands.serve import serve
from serve_app.commands.show import show
from serve_app.commands.stop import stop
from serve_app.commands.tail import tail
from serve_app.commands.takeover import takeover
from serve_app.trials import Refusal

WHERE = ("--url", "--data-dir")


class Program(click.Group):
    """A group whose errors are one line, and whose exit codes are those of the design."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands as they were added: a newcomer's order."""
        del ctx
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take where the instance is before the command, too: `outlast --url URL ps` is `outlast ps --url URL`."""
        at = 0
        while at < len(args) and args[at].partition("=")[0] in WHERE:
            at += 1 if "=" in args[at] else 2
        return super().parse_args(ctx, [*args[at : at + 1], *args[:at], *args[at + 1 :]])

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run, and exit the process."""
        sys.exit(self._code(*args, **{**kwargs, "standalone_mode": False}))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and end quietly if nobody reads what it says; click would end with 1."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _forget_stdout()
            return Exit.UNREAD

    def _code(self, *args: Any, **kwargs: Any) -> int:
        try:
            code = super().main(*args, **kwargs)
            sys.stdout.flush()
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            return Exit.USAGE
        except click.ClickException as error:
            return _say(_usage_line(error), Exit.USAGE)
        except (OutlastError, Refusal) as error:
            return _say(error.message, of_error(error))
        except (KeyboardInterrupt, click.Abort):
            return Exit.DETACHED
        except BrokenPipeError:
            _forget_stdout()
            return Exit.UNREAD
        except Exception:  # noqa: BLE001 - a trace, but not exit code 1, which would speak of a run
            traceback.print_exc()
            return _say("this is a bug; the lines above say where", Exit.BUG)
        return int(code or Exit.DONE)


def _usage_line(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    hint = f" See: {context.command_path} --help" if context else ""
    return " ".join(error.format_message().split()) + hint


def _say(message: str, code: Exit) -> Exit:
    with suppress(OSError):  # nobody reads stderr either
        click.echo(f"outlast: {message}", err=True)
    return code


def _forget_stdout() -> None:
    """Let the interpreter's own last flush of stdout go nowhere, so that it does not complain."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        try:
            click.echo(f"outlast {metadata.version('outlast')}")
        except metadata.PackageNotFoundError:
            click.echo("outlast, not installed: run from a checkout")
        ctx.exit()


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version."
)
def cli() -> None:
    """Agent runs that outlast the browser tab, the driver process and the node."""


for command in (serve, run, tail, ps, show, cancel, takeover, reap, stop, backup, restore, doctor):
    cli.add_command(command)
