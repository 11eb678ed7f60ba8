"""Write `docs/settings.md` from `runtime.settings.Settings`, the only place where a setting is described.

    python tools/settings_table.py            write it
    python tools/settings_table.py --check    exit 1 if it is not what would be written

`tests/project/test_settings_table.py` holds the two together.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
from msgspec import Meta

from runtime.settings import PREFIX, Settings

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "settings.md"
KINDS = {int: "whole number", float: "number", str: "text", bool: "true or false"}
HEAD = f"""\
# Settings

Every setting is an environment variable, read when `outlast` starts. An unknown `{PREFIX}*` name is refused, and the
error names the nearest real one; so is a value out of its range. Names that end in `_S` are seconds, in `_BYTES` bytes;
lists are separated by commas. `outlast serve` takes `--host`, `--port` and `--data-dir` as options too.

This file is made by `tools/settings_table.py` from `runtime/settings.py`; change it there.

| setting | default | value | means |
| --- | --- | --- | --- |
"""


def render() -> str:
    """Return the document. Raises ValueError for a setting without a description."""
    return HEAD + "".join(rows())


def rows() -> Iterator[str]:
    """Yield one row for each setting, in the order of the class."""
    hints = get_type_hints(Settings, include_extras=True)
    for field in msgspec.structs.fields(Settings):
        kind, meta = get_args(hints[field.name])
        if not isinstance(meta, Meta) or not meta.description:
            raise ValueError(f"{field.name} has no description: say in runtime/settings.py what it means")
        name = PREFIX + field.name.upper()
        yield f"| `{name}` | {_default(field.default)} | {_value(kind, meta)} | {_cell(meta.description)} |\n"


def _default(value: object) -> str:
    return "empty" if value == "" else f"`{value}`"


def _value(kind: type, meta: Meta) -> str:
    limits = [
        f"over {meta.gt}" if meta.gt is not None else "",
        f"at least {meta.ge}" if meta.ge is not None else "",
        f"at most {meta.le}" if meta.le is not None else "",
        f"`{meta.pattern}`" if meta.pattern else "",
        "not empty" if meta.min_length else "",
    ]
    return ", ".join([KINDS[kind], *(limit for limit in limits if limit)])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(argv: list[str]) -> int:
    """Write or check; return the exit code."""
    made = render()
    if "--check" in argv:
        return 0 if DOCUMENT.exists() and DOCUMENT.read_text() == made else 1
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
