"""Read and check what a request says in `forwardedProps`, so that a harness gets a value it can use or nothing.

Every refusal is InputInvalid `option_invalid` with the place in `field`, and says what would be accepted. A null is
the same as an absent option. Names that no harness reads are left alone: they are the agent's own business.

Whatever ends up in an argv is checked here against being taken for something else: a value never begins with `-`
(the program would read it as a flag) and never holds NUL (no argv can).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from runtime.errors import InputInvalid

# Linux MAX_ARG_STRLEN: the longest single argument that execve takes, its NUL included.
MAX_ARGUMENT_BYTES = 128 * 1024
# Of a whole argv. Linux allows a quarter of the stack limit (2 MiB by default) for arguments and environment together.
MAX_ARGV_BYTES = 1024 * 1024

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
# What an agent may never have, whatever the allow-list says (design 7).
_ENV_NEVER = ("RAY_", "OUTLAST_")


def refuse(name: str, hint: str) -> NoReturn:
    """Raise InputInvalid for option `name`; `hint` completes the sentence "forwardedProps.<name> must be ..."."""
    field = f"forwardedProps.{name}"
    raise InputInvalid(f"{field} must be {hint}.", code="option_invalid", field=field)


def forwarded(input: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of a request; empty if it has none. Raises InputInvalid if they are no object."""
    props = input.get("forwardedProps")
    if props is None:
        return {}
    if not isinstance(props, Mapping):
        raise InputInvalid(
            'forwardedProps must be an object such as {"model": "..."}.', code="option_invalid", field="forwardedProps"
        )
    return props


def text(props: Mapping[str, Any], name: str, pattern: re.Pattern[str], hint: str) -> str | None:
    """Return a text option that `pattern` matches as a whole, or None."""
    value = props.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not pattern.fullmatch(value):
        refuse(name, hint)
    return value


def choice(props: Mapping[str, Any], name: str, allowed: Sequence[str]) -> str | None:
    """Return an option that is one of `allowed`, or None."""
    value = props.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or value not in allowed:
        refuse(name, f"one of {', '.join(allowed)}")
    return value


def integer(props: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    """Return a whole number from `low` to `high`, or None. True and 1.0 are none."""
    value = props.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        refuse(name, f"a whole number from {low} to {high}")
    return value


def flag(props: Mapping[str, Any], name: str) -> bool:
    """Return a yes or no; False if it is absent."""
    value = props.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        refuse(name, "true or false")
    return value


def session(props: Mapping[str, Any], pattern: re.Pattern[str], event: str) -> str | None:
    """Return the session to go on with, one that the agent reported as CUSTOM `event`. `sessionId` is the contract's
    word for it, `resume` that of the agents."""
    hint = f"a session id that this agent reported (CUSTOM {event})"
    named = text(props, "sessionId", pattern, hint)
    resumed = text(props, "resume", pattern, hint)
    if named is not None and resumed is not None and named != resumed:
        refuse("resume", "the same as forwardedProps.sessionId, or absent")
    return named or resumed


def with_session(input: Mapping[str, Any], session: str) -> dict[str, Any]:
    """Return a request that names a session, and is the same but for that."""
    return {**input, "forwardedProps": {**forwarded(input), "sessionId": session}}


def without_session(input: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request that names no session, and is the same but for that."""
    props = {key: value for key, value in forwarded(input).items() if key not in ("sessionId", "resume")}
    return {**input, "forwardedProps": props}


def texts(props: Mapping[str, Any], name: str, pattern: re.Pattern[str], hint: str) -> tuple[str, ...]:
    """Return a list of texts that each match `pattern` as a whole; empty if the option is absent."""
    value = props.get(name)
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        refuse(name, f"an array of {hint}")
    for item in value:
        if not isinstance(item, str) or not pattern.fullmatch(item):
            refuse(name, f"an array of {hint}")
    return tuple(value)


def argv(props: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return an option that is a whole argv: at least one argument, the first of them not empty.

    Raises InputInvalid for what execve would refuse: NUL, lone surrogates, an argument or a sum over the limit."""
    hint = 'an array of texts, the program first, such as ["python3", "agent.py"]'
    value = props.get(name)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value or not value[0]:
        refuse(name, hint)
    total = 0
    for item in value:
        if not isinstance(item, str):
            refuse(name, hint)
        reason = argument_fault(item)
        if reason is not None:
            refuse(name, f"{hint}; one of them {reason}")
        total += len(item.encode()) + 1
    if total > MAX_ARGV_BYTES:
        refuse(name, f"shorter than {MAX_ARGV_BYTES} bytes in all; write what is long into a file of the workspace")
    return tuple(value)


def argument_fault(argument: str) -> str | None:
    """Return why execve would not take `argument`, as the end of a sentence, or None."""
    try:
        size = len(argument.encode())
    except UnicodeEncodeError:
        return "holds a lone surrogate, which is no character"
    if "\0" in argument:
        return "holds a NUL character"
    if size >= MAX_ARGUMENT_BYTES:
        return f"is longer than {MAX_ARGUMENT_BYTES - 1} bytes"
    return None


def check_env(props: Mapping[str, Any]) -> None:
    """Check `env`: an array of names, or an object of names and text values.

    Which names are allowed is the operator's setting and not known here; RAY_* and OUTLAST_* never are."""
    value = props.get("env")
    if value is None:
        return
    hint = 'an array of variable names such as ["MY_TOKEN"], or an object of names and text values'
    if isinstance(value, Mapping):
        if not all(isinstance(item, str) and "\0" not in item for item in value.values()):
            refuse("env", hint)
    elif not isinstance(value, Sequence) or isinstance(value, str | bytes):
        refuse("env", hint)
    for item in value:
        if not isinstance(item, str) or not _ENV_NAME.fullmatch(item):
            refuse("env", hint)
        if item.startswith(_ENV_NEVER):
            refuse("env", f"without {item}: RAY_* and OUTLAST_* are never given to an agent")
