"""What it costs to tell how two texts differ: bounded by the steps that it takes, and not by the lines."""

from __future__ import annotations

from runtime.sandboxes.diffing import Version, file_diff


def _diff(old: str, new: str) -> str:
    return b"".join(file_diff(b"file", Version(0o100644, old.encode()), Version(0o100644, new.encode()))).decode()


def test_texts_that_would_take_long_to_compare_are_taken_out_and_put_in() -> None:
    """A thousand lines of two kinds took seconds."""
    diff = _diff("x\ny\n" * 490, "x\n" * 490 + "y\n" * 490)
    assert diff.count("\n ") == 2, "what both begin and end with"


def test_long_texts_that_differ_in_a_few_places_are_told_line_by_line() -> None:
    lines = [f"{at}\n" for at in range(3000)]
    diff = _diff("".join(lines), "".join(line if at % 999 else "new\n" for at, line in enumerate(lines)))
    assert diff.count("\n+new") == 4
    assert diff.count("\n-") == 1 + 4, "the name of the old one, too"
