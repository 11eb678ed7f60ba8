"""What is put aside comes back exactly."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.core.aside import put_aside, take_up

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)


@given(PLAIN)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    again = take_up(put_aside(value))
    assert repr(again) == repr(value)  # 1, 1.0 and True are equal, and so are dicts in any order


def test_what_no_canonical_chunk_could_hold_comes_back_too() -> None:
    again = take_up(put_aside([math.inf, -math.inf, math.nan, "\ud800", 10**4000, -0.0]))
    assert repr(again) == repr([math.inf, -math.inf, math.nan, "\ud800", 10**4000, -0.0])


@pytest.mark.parametrize("data", [b"", b"[", b"\xff", b"[1]x"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json's own words
        take_up(data)
