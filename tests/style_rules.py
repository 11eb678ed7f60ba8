"""The project's own rules of style, as code: each finding reads `file:line: X is banned, use Y`.

Only what no linter knows; ruff holds the rest. A rule is one function in `RULES`, and tests/project/test_style.py has
an example that it must find, since a rule that never fires looks like a rule that is kept.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

MAX_MODULE_LINES = 400  # past this a noun is missing: find it
MAX_FUNCTION_LINES = 60
EMPTY_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "base", "manager", "misc"})
MAY_SLEEP = frozenset({"tests/waiting.py"})
PRODUCTION = ("runtime", "actors", "serve_app")
SKIPPED_FOLDERS = frozenset({"build", "node_modules", "recordings", "__pycache__"})

# Written in pieces, so that this file does not find itself.
FOREIGN_PATH = re.compile("/" + r"work/|(?<![\w/-])(?:\.\./)*" + "shared" + "/")
REGISTRY_HOST = re.compile(r"pypi\.(?:org|io)|python" + r"hosted\.org|npm" + r"js\.(?:org|com)|debian" + r"\.org")


@dataclass(frozen=True)
class Finding:
    """One breach, as a person wants to read it."""

    path: str
    line: int
    banned: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.banned} is banned, use {self.instead}"


@dataclass(frozen=True)
class Source:
    """One text file; `tree` is None unless it is Python that parses, and `broken_at` the line where it does not."""

    path: str
    text: str
    tree: ast.Module | None = None
    broken_at: int | None = None

    @property
    def top(self) -> str:
        """Return the first folder of the path."""
        return PurePosixPath(self.path).parts[0]

    def nodes(self) -> Iterator[ast.AST]:
        """Yield every node of the tree."""
        return ast.walk(self.tree) if self.tree else iter(())

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Yield every function of the tree."""
        return (node for node in self.nodes() if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def parse(path: str, text: str) -> Source:
    """Return `text` as a source; `path` is relative to the root, with slashes."""
    if not path.endswith(".py"):
        return Source(path, text)
    try:
        return Source(path, text, ast.parse(text))
    except SyntaxError as error:
        return Source(path, text, broken_at=error.lineno or 1)


def find(source: Source) -> list[Finding]:
    """Return every breach in `source`, by line."""
    found = [finding for rule in RULES for finding in rule(source)]
    return sorted(found, key=lambda finding: finding.line)


def sources(root: Path) -> Iterator[Source]:
    """Yield every text file of the checkout, but nothing built, cached, downloaded or recorded."""
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root).parts
        hidden = inside[0].startswith(".") and inside[0] not in (".ci", ".gitignore")
        if hidden or SKIPPED_FOLDERS.intersection(inside) or not path.is_file() or inside[-1].endswith(".egg-info"):
            continue
        content = path.read_bytes()
        if b"\0" not in content:
            yield parse("/".join(inside), content.decode(errors="replace"))


def _broken(source: Source) -> Iterator[Finding]:
    if source.broken_at:
        yield Finding(source.path, source.broken_at, "what does not parse", "Python 3.11")


def _module_names(source: Source) -> Iterator[Finding]:
    for name in PurePosixPath(source.path).with_suffix("").parts if source.tree else ():
        if name in EMPTY_NAMES:
            yield Finding(source.path, 1, f"a module named {name!r}", "a noun that says what is in it")


def _sleeps(source: Source) -> Iterator[Finding]:
    if source.top != "tests" or source.path in MAY_SLEEP:
        return
    for node in source.nodes():
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="asyncio"), attr="sleep"), args=[ast.Constant(value=0)]):
                pass  # a bare yield to the loop waits for nothing
            case ast.Call(func=ast.Attribute(value=ast.Name(id="time" | "asyncio" | "anyio" as owner), attr="sleep")):
                yield Finding(
                    source.path, node.lineno, f"{owner}.sleep in a test", "waiting.wait_until or waiting.until"
                )
            case ast.ImportFrom(module="time" | "asyncio" | "anyio" as owner, names=names):
                if any(name.name == "sleep" for name in names):
                    yield Finding(source.path, node.lineno, f"{owner}.sleep in a test", "waiting.wait_until")


def _mocks(source: Source) -> Iterator[Finding]:
    for node in source.nodes():
        match node:
            case ast.Import(names=names) if any(name.name.startswith(("unittest.mock", "mock")) for name in names):
                yield Finding(source.path, node.lineno, "unittest.mock", "a fake that implements the port")
            case ast.ImportFrom(module="unittest.mock" | "mock"):
                yield Finding(source.path, node.lineno, "unittest.mock", "a fake that implements the port")
            case ast.ImportFrom(module="unittest", names=names) if any(name.name == "mock" for name in names):
                yield Finding(source.path, node.lineno, "unittest.mock", "a fake that implements the port")


def _splitlines(source: Source) -> Iterator[Finding]:
    for node in source.nodes():
        match node:
            case ast.Attribute(attr="splitlines") if source.top == "runtime":
                yield Finding(source.path, node.lineno, "splitlines (it splits at U+2028 too)", 'split(b"\\n")')


def _late_imports(source: Source) -> Iterator[Finding]:
    for function in source.functions() if source.top == "runtime" else ():
        for node in ast.walk(function):
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield Finding(source.path, node.lineno, "an import in a function", "one at the top, and no cycle")


def _sizes(source: Source) -> Iterator[Finding]:
    if source.tree is None:
        return
    lines = source.text.count("\n")
    if lines > MAX_MODULE_LINES:
        yield Finding(source.path, lines, f"a module of {lines} lines", f"two nouns of at most {MAX_MODULE_LINES}")
    for function in source.functions():
        size = (function.end_lineno or function.lineno) - function.lineno + 1
        if size > MAX_FUNCTION_LINES:
            instead = f"parts of at most {MAX_FUNCTION_LINES}"
            yield Finding(source.path, function.lineno, f"a function of {size} lines ({function.name})", instead)


def _foreign_paths(source: Source) -> Iterator[Finding]:
    for number, line in enumerate(source.text.split("\n"), 1):
        if match := FOREIGN_PATH.search(line):
            yield Finding(source.path, number, f"a path of one machine ({match[0]})", "a file of this repository")


def _registry_hosts(source: Source) -> Iterator[Finding]:
    for number, line in enumerate(source.text.split("\n"), 1):
        if match := REGISTRY_HOST.search(line):
            yield Finding(source.path, number, f"a registry's host ({match[0]})", "the package's name")


Rule = Callable[[Source], Iterator[Finding]]
RULES: tuple[Rule, ...] = (
    _broken,
    _module_names,
    _sleeps,
    _mocks,
    _splitlines,
    _late_imports,
    _sizes,
    _foreign_paths,
    _registry_hosts,
)
