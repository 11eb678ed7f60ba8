"""Functions as tools: what the model is told of them, what it may give, and what it gets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import host_functions
import pytest
from msgspec import Meta

from actors.compose import lent_tools
from runtime.errors import InputInvalid
from runtime.host_tools import RESULT_BYTES, HostTool, ToolCancelled, ToolContext, chosen, still_chosen, tool
from runtime.settings import load
from serve_app.commands import checks


@dataclass
class Place:
    row: int


def find(
    at: Place,
    kind: Literal["a", "b"] = "a",
    *,
    most: Annotated[int, Meta(ge=1, description="How many.")] = 3,
    context: ToolContext,
) -> dict[str, Any]:
    """Find something.

    It may take a while."""
    return {"row": at.row, "kind": kind, "most": most, "call": context.call_id}


def context(emit: Callable[[str, Any], None] = lambda _name, _value: None) -> ToolContext:
    return ToolContext("run", "thread", "owner", "call", emit)


def text(result: dict[str, Any]) -> str:
    (part,) = result["content"]
    return str(part["text"])


def test_parameters_are_the_schema_and_the_docstring_what_is_told() -> None:
    listed = HostTool("find", find).listed()
    assert (listed["name"], listed["description"]) == ("find", "Find something.\n\nIt may take a while.")
    schema = listed["inputSchema"]
    assert (schema["type"], schema["required"], schema["additionalProperties"]) == ("object", ["at"], False)
    assert schema["properties"] == {
        "at": {"$ref": "#/$defs/Place"},
        "kind": {"enum": ["a", "b"]},
        "most": {"description": "How many.", "type": "integer", "minimum": 1},
    }
    assert schema["$defs"]["Place"]["required"] == ["row"]


def test_a_call_gets_what_was_given_and_the_functions_own_defaults() -> None:
    result = HostTool("find", find).call({"at": {"row": 2}, "kind": "b"}, context())
    assert (text(result), result["isError"]) == ('{"call":"call","kind":"b","most":3,"row":2}', False)


@pytest.mark.parametrize(
    "arguments", [{}, {"at": {"row": "x"}}, {"at": {"row": 1}, "more": 1}, {"at": {"row": 1}, "most": 0}]
)
def test_arguments_that_do_not_fit_are_told_and_the_function_is_not_called(arguments: dict[str, Any]) -> None:
    result = HostTool("find", find).call(arguments, context())
    assert result["isError"]
    assert text(result).startswith("The arguments of find are not as they must be: ")


def test_what_a_function_returns_is_text_or_json_and_bounded() -> None:
    returned: list[Any] = ["plain", None, [1, {"a": "é"}], "x" * (RESULT_BYTES + 1), object()]
    results = [HostTool("give", lambda value=value: value).call({}, context()) for value in returned]
    assert [text(result) for result in results[:3]] == ["plain", "", '[1,{"a":"é"}]']
    assert [result["isError"] for result in results] == [False, False, False, True, True]


def test_nobody_waits_and_the_function_is_told() -> None:
    begun, events = threading.Event(), list[Any]()

    async def endless(context: ToolContext) -> None:
        context.emit("begun", {})
        begun.set()
        await asyncio.Event().wait()

    given = context(lambda name, _: events.append(name))

    def end() -> None:
        begun.wait(10.0)
        given.cancel()

    ender = threading.Thread(target=end)
    ender.start()
    result = HostTool("endless", endless).call({}, given)
    ender.join()
    assert (result["isError"], events, given.cancelled.is_set()) == (True, ["begun"], True)
    with pytest.raises(ToolCancelled):
        given.emit("late", {})
    assert events == ["begun"]


def test_what_cannot_be_a_tool_is_refused_by_its_name() -> None:
    def spread(*values: int) -> None: ...

    def positional(value: int, /) -> None: ...

    def strange(value: Callable[[], int]) -> None: ...

    for function in (spread, positional, strange, 5):
        with pytest.raises(InputInvalid, match="'bad' cannot be a tool") as caught:
            HostTool("bad", function)  # type: ignore[arg-type]
        assert caught.value.code == "setting_invalid"
    with pytest.raises(InputInvalid, match="a tool's name"):
        HostTool("no blanks", find)


def test_a_function_says_more_of_itself() -> None:
    made = HostTool("find", tool(idempotent=True, timeout_s=5.0)(lambda: 1))
    assert (made.idempotent, made.timeout_s, made.listed()["annotations"]["idempotentHint"]) == (True, 5.0, True)


def test_a_run_has_the_tools_that_it_names_and_all_if_it_names_none() -> None:
    def named(value: Any) -> dict[str, Any]:
        return {"forwardedProps": {"tools": value}}

    assert chosen({}, ["b", "a"]) == chosen(named(None), ["b", "a"]) == ("a", "b")
    assert (chosen(named(["b"]), ["b", "a"]), chosen(named([]), ["a"])) == (("b",), ())
    unfit: list[Any] = [["c"], "a", [1], {}, 5]
    for wrong in unfit:
        with pytest.raises(InputInvalid, match="must be an array of names, some of a") as caught:
            chosen(named(wrong), ["a"])
        assert caught.value.code == "option_invalid"
        assert still_chosen(named(wrong), ["a"]) == frozenset()


def test_doctor_and_settings_name_what_cannot_be_loaded() -> None:
    assert checks.tools(load({"OUTLAST_TOOLS": host_functions.SETTING})).detail == (
        "add, fail, hold, hold_again, slow_add, who"
    )
    assert checks.tools(load({})).ok
    for setting in ("add", "add=host_functions:nothing", "x=no_such_module:f", "a b=host_functions:add"):
        found = checks.tools(load({"OUTLAST_TOOLS": setting}))
        assert (found.ok, "OUTLAST_TOOLS: " in found.detail) == (False, True), found
    assert lent_tools(load({"OUTLAST_TOOLS": "add=host_functions:add"})).timeout_s == 600.0
