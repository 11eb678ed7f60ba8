"""What a document names: files, folders and tests, so that a test can check that they exist.

A name is a link's target, or a code span that is a path: it ends like a file of ours, or starts with a folder at the
root. Commands, URLs, globs and placeholders are not names. `path.py::symbol` and "`symbol` in `path.py`" name a symbol;
only the first is checked, since the second is prose.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"[A-Za-z0-9_.][\w./-]*")
SUFFIX = re.compile(r"\.(?:py|md|toml|yaml|yml|txt|mjs|ts|sql|sh|in)$")
MADE_LATER = ("build/", ".outlast/", ".venv/")  # by make and serve: not in a checkout


@dataclass(frozen=True)
class Name:
    """`path` as written, perhaps with a `symbol`, on `line` of the document."""

    line: int
    path: str
    symbol: str | None


def names(text: str, folders: frozenset[str]) -> Iterator[Name]:
    """Yield what `text` (Markdown) names; `folders` are those at the root of the checkout."""
    prose = FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
    for number, line in enumerate(prose.split("\n"), 1):
        for written in SPAN.findall(line):
            path, _, symbol = written.partition("::")
            known = SUFFIX.search(path) or (path.split("/")[0] in folders and "/" in path)
            if PATH.fullmatch(path) and known and not path.startswith(MADE_LATER):
                yield Name(number, path, symbol or None)
        for target in LINK.findall(line):
            path = target.partition("#")[0]
            if path and ":" not in path:
                yield Name(number, path, None)


def missing(root: Path, document: Path) -> list[str]:
    """Return `file:line: ...` for each name in `document` that is not in the checkout."""
    folders = frozenset(path.name for path in root.iterdir() if path.is_dir())
    found = []
    for name in names(document.read_text(), folders):
        places = [root / name.path, document.parent / name.path]
        place = next((place for place in places if place.exists()), None)
        where = f"{document.relative_to(root)}:{name.line}"
        if place is None:
            found.append(f"{where}: there is no {name.path}")
        elif name.symbol and not re.search(
            rf"\b{re.escape(name.symbol.split('[')[0].split('::')[-1])}\b", place.read_text()
        ):
            found.append(f"{where}: {name.path} has no {name.symbol}")
    return found
