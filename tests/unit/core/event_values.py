"""What hypothesis draws for tests of chunks: JSON values and events, with every shape that ever broke a codec."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from runtime.core.agui import SPEC_KEYS

TYPES = sorted(SPEC_KEYS)

# Characters that break codecs: quotes, escapes, controls, line separators, the edges of UTF-16, and look-alike keys.
_hard = st.sampled_from(
    [
        '"',
        "\\",
        "/",
        "\n",
        "\r",
        "\t",
        "\b",
        "\x00",
        "\x1f",
        "\x7f",
        "\u2028",
        "\u00e9",
        "\ue000",
        "\uffff",
        "\U0001f600",
    ]
)
plain_text = st.one_of(
    st.text(max_size=8),
    st.lists(_hard, max_size=4).map("".join),
    st.sampled_from(["type", '"type":"', ',"type":"RUN_ERROR"}', "usage", "value", "timestamp", "threadId", ""]),
)
_surrogates = st.lists(st.sampled_from(["\ud800", "\udbff", "\udc00", "\udfff", "\ud83d", "\ude01", "a"]), max_size=4)
any_text = st.one_of(plain_text, _surrogates.map("".join))

integers = st.one_of(st.integers(-5, 5), st.integers(-(2**70), 2**70))
floats = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-40, 40).map(lambda n: 10.0**n))


def json_values(text: st.SearchStrategy[str], numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for JSON values out of `text` and `numbers`."""
    leaves = st.one_of(st.none(), st.booleans(), numbers, text)
    return st.recursive(
        leaves,
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)),
        max_leaves=6,
    )


def objects(text: st.SearchStrategy[str], numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for JSON objects out of `text` and `numbers`."""
    return st.dictionaries(text, json_values(text, numbers), max_size=5)


any_number = st.one_of(integers, floats)
any_value = json_values(any_text, any_number)
any_object = objects(any_text, any_number)


@st.composite
def events(draw: st.DrawFn, text: st.SearchStrategy[str] = any_text) -> dict[str, Any]:
    """Draw an event: mostly of a known type, with keys of its table, foreign keys and metadata."""
    kind = draw(st.one_of(st.sampled_from(TYPES), text))
    known = sorted(SPEC_KEYS.get(kind, ()))
    foreign = ["timestamp", "threadId", "model", "content", "rawEvent", "usage", "zzz"]
    keys = draw(st.lists(st.sampled_from([*known, *foreign]), max_size=6, unique=True))
    value = json_values(text, any_number)
    event: dict[str, Any] = {key: draw(st.one_of(text, value)) for key in keys}
    if draw(st.booleans()):
        event["metadata"] = draw(
            st.one_of(value, st.just({}), st.fixed_dictionaries({"tanstack": value}, optional={"x": value}))
        )
    event["type"] = kind
    return event
