"""Host tools: Python functions of yours that an agent calls, wherever its sandbox is (docs/tools.md).

    def look_up(order: int, context: ToolContext) -> dict[str, str]:
        "Return what is known of an order."
        context.emit("order.seen", {"order": order})
        return {...}

    OUTLAST_TOOLS=look_up=shop.tools:look_up

A function's parameters and their types are its JSON schema, its docstring is what the model is told of it. A parameter
of the type ToolContext is not the model's to give. A call runs on an OS thread of the run's driver, an `async` function
on an event loop of its own there: whatever a function blocks, the driver's loop goes on (P13).

Deliberately not: pydantic, here and in schemas. A run actor has none (memory per run); msgspec does both.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import msgspec

from runtime.core import chunk
from runtime.core.record import Struct
from runtime.errors import InputInvalid

F = TypeVar("F", bound=Callable[..., Any])

SETTING = "tools"
RESULT_BYTES = 1 << 20  # of one result; a larger one belongs into a file
MESSAGE_CHARACTERS = 4000
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")  # of what every model's API takes
_SAID = "__outlast_tool__"


class ToolError(Exception):
    """Raised by a tool: the model is told its text, and nothing of where it came from."""


class ToolCancelled(Exception):
    """Raised by `emit` when nobody waits for the call any more: its time is up, or its driver has stopped."""


class Said(Struct, frozen=True, kw_only=True):
    """What `tool` says of a function."""

    idempotent: bool = False
    timeout_s: float | None = None


def tool(*, idempotent: bool = False, timeout_s: float | None = None) -> Callable[[F], F]:
    """Say more of a function. `idempotent`: a call that a lost driver had begun is made again by the next one, and not
    answered with an error. `timeout_s`: instead of OUTLAST_TOOL_TIMEOUT_S."""

    def say(function: F) -> F:
        setattr(function, _SAID, Said(idempotent=idempotent, timeout_s=timeout_s))
        return function

    return say


class ToolContext:
    """What a call is part of."""

    def __init__(self, run_id: str, thread_id: str, owner: str, call_id: str, emit: Callable[[str, Any], None]) -> None:
        self.run_id = run_id
        self.thread_id = thread_id
        self.owner = owner
        self.call_id = call_id  # the same if the call is made again
        self.cancelled = threading.Event()  # nobody waits for the call any more
        self._emit = emit
        self._enders: list[Callable[[], object]] = []

    def emit(self, name: str, value: Any) -> None:
        """Put a CUSTOM event into the run's log; return when it is stored. The n-th of a call is stored once, also if
        the call is made again. Raises ToolCancelled; TypeError for a value that JSON has no form for."""
        if self.cancelled.is_set():
            raise ToolCancelled(f"Nobody waits for the call {self.call_id} any more.")
        self._emit(name, value)

    def cancel(self) -> None:
        """Tell the function, if it listens, that nobody waits any more."""
        self.cancelled.set()
        for end in self._enders:
            end()

    def _run(self, coroutine: Any) -> Any:
        """Run an async function's call to its end, which `cancel` may bring about."""

        async def main() -> Any:
            loop = asyncio.get_running_loop()
            task = asyncio.ensure_future(coroutine)
            self._enders.append(lambda: loop.is_closed() or loop.call_soon_threadsafe(task.cancel))
            if self.cancelled.is_set():
                task.cancel()
            return await task

        return asyncio.run(main())


class HostTool:
    """One function, as a tool."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        """Raises InputInvalid `setting_invalid` if the function cannot be one."""
        said = getattr(function, _SAID, Said())
        self.name = name
        self.idempotent: bool = said.idempotent
        self.timeout_s: float | None = said.timeout_s
        self._function = function
        if not _NAME.fullmatch(name):
            raise _refused(name, "a tool's name begins with a letter and has at most 64 of A-Z a-z 0-9 _ -")
        self._context, self._arguments = _arguments(name, function)
        try:
            ((schema,), named) = msgspec.json.schema_components([self._arguments], ref_template="#/$defs/{name}")
        except (TypeError, ValueError) as error:
            raise _refused(name, f"a parameter has no JSON schema: {error}") from error
        top = named.pop(str(schema["$ref"]).rpartition("/")[2])
        top.pop("title", None)
        self.schema: dict[str, Any] = {**top, "$defs": named} if named else top

    def listed(self) -> dict[str, Any]:
        """Return the tool as MCP lists it."""
        described = inspect.getdoc(self._function) or self.name
        hints = {"readOnlyHint": False, "idempotentHint": self.idempotent}
        return {"name": self.name, "description": described, "inputSchema": self.schema, "annotations": hints}

    def call(self, arguments: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
        """Call the function; return the result as MCP has it. Blocks. Raises nothing that a function may raise."""
        try:
            given = msgspec.convert(arguments, self._arguments, str_keys=True)
        except msgspec.ValidationError as error:
            return failed(f"The arguments of {self.name} are not as they must be: {error}")
        named = {field: value for field in given.__struct_fields__ if (value := getattr(given, field)) is not _ABSENT}
        if self._context is not None:
            named[self._context] = context
        try:
            returned = self._function(**named)
            if inspect.iscoroutine(returned):
                returned = context._run(returned)  # noqa: SLF001 - the two are one
            return succeeded(returned)
        except ToolError as error:
            return failed(str(error))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever it is, the model hears of it
            return failed(f"{self.name} failed: {type(error).__name__}: {error}")


class _Absent(msgspec.Struct, frozen=True):
    """Stands for what was not given: the function's own default then holds."""


_ABSENT = _Absent()


def _absent() -> _Absent:
    """Return it; as a factory, since a schema shows a default."""
    return _ABSENT


def succeeded(value: Any) -> dict[str, Any]:
    """Return the result of a call that returned `value`: a text as it is, anything else as JSON."""
    text = value if isinstance(value, str) else "" if value is None else chunk.encode(value).decode()
    size = len(text.encode(errors="replace"))
    if size > RESULT_BYTES:
        return failed(f"The result has {size} bytes, and at most {RESULT_BYTES} are passed on.")
    return {"content": [{"type": "text", "text": text}], "isError": False}


def failed(message: str) -> dict[str, Any]:
    """Return the result of a call that failed."""
    return {"content": [{"type": "text", "text": message[:MESSAGE_CHARACTERS]}], "isError": True}


def chosen(input: Mapping[str, Any], known: Collection[str]) -> tuple[str, ...]:
    """Return the tools of a run: those that `forwardedProps.tools` names, else all. Raises InputInvalid."""
    names = named(input)
    if names is None:
        return tuple(sorted(known))
    field = f"forwardedProps.{SETTING}"
    if not isinstance(names, list) or not all(isinstance(name, str) and name in known for name in names):
        have = f"some of {', '.join(sorted(known))}" if known else "none: OUTLAST_TOOLS declares none here"
        raise InputInvalid(f"{field} must be an array of names, {have}.", code="option_invalid", field=field)
    return tuple(sorted(set(names)))


def still_chosen(input: Mapping[str, Any], known: Collection[str]) -> frozenset[str]:
    """Return those of a run's tools that are still known: it may be older than what is declared now."""
    names = named(input)
    return frozenset(known if names is None else (name for name in known if isinstance(names, list) and name in names))


def named(input: Mapping[str, Any]) -> Any:
    """Return what a request says of its tools, unchecked; None: nothing, so it gets all."""
    props = input.get("forwardedProps")
    return props.get(SETTING) if isinstance(props, Mapping) else None


def _arguments(name: str, function: Callable[..., Any]) -> tuple[str | None, type[msgspec.Struct]]:
    """Return the name of the parameter that takes the context, and the others as one type."""
    try:
        signature, hints = inspect.signature(function), typing.get_type_hints(function, include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise _refused(name, f"its parameters cannot be read: {error}") from error
    context: str | None = None
    fields: list[Any] = []
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise _refused(name, f"its parameter {parameter.name!r} cannot be given by name")
        hint = hints.get(parameter.name, Any)
        if hint is ToolContext:
            context = parameter.name
        elif parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            fields.append((parameter.name, hint, msgspec.field(default_factory=_absent)))
    try:
        made = msgspec.defstruct(f"{name}_arguments", fields, kw_only=True, forbid_unknown_fields=True)
    except (TypeError, ValueError) as error:
        raise _refused(name, f"its parameters cannot be read: {error}") from error
    return context, made


def _refused(name: str, why: str) -> InputInvalid:
    message = f"OUTLAST_{SETTING.upper()}: {name!r} cannot be a tool: {why}."
    return InputInvalid(message, code="setting_invalid", field=SETTING)
