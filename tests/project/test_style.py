"""The project keeps its own rules of style, and each rule finds what it bans."""

from __future__ import annotations

from pathlib import Path

import pytest
from style_rules import RULES, Rule, find, parse, sources

ROOT = Path(__file__).resolve().parents[2]

BREACHES = {
    "_broken": ("actors/x.py", "def f[T](x: T): ...\n"),  # Python 3.12
    "_module_names": ("runtime/utils.py", ""),
    "_sleeps": ("tests/unit/test_x.py", "import time\ntime.sleep(1)\n"),
    "_mocks": ("tests/unit/test_x.py", "from unittest import mock\n"),
    "_splitlines": ("runtime/x.py", "'a b'.splitlines()\n"),
    "_late_imports": ("runtime/x.py", "def f():\n    import os\n"),
    "_sizes": ("actors/x.py", "def f():\n" + "    x = 1\n" * 70),
    "_foreign_paths": ("docs/x.md", "see /" + "work/main\n"),
    "_registry_hosts": ("x.json", "https://registry.npm" + "js.org/x\n"),
}

ALLOWED = [
    ("runtime/x.py", "import os\n\ndef f(data: bytes):\n    return data.split(b'\\n'), os.sep\n"),
    ("serve_app/x.py", "def f():\n    import os\n"),
    ("tests/unit/test_x.py", "import asyncio\n\nasync def test_x():\n    await asyncio.sleep(0)\n"),
    ("docs/x.md", "an unshared/thing and /workspace/x\n"),
]


def test_the_project_has_no_breach() -> None:
    findings = [str(finding) for source in sources(ROOT) for finding in find(source)]
    assert not findings, "\n" + "\n".join(findings)


def test_every_rule_has_an_example() -> None:
    assert {rule.__name__ for rule in RULES} == set(BREACHES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_rule_finds_its_example_and_says_what_to_use(rule: Rule) -> None:
    path, text = BREACHES[rule.__name__]
    (finding,) = find(parse(path, text))
    assert str(finding).startswith(f"{path}:")
    assert " is banned, use " in str(finding)


@pytest.mark.parametrize(("path", "text"), ALLOWED)
def test_what_is_allowed_is_not_found(path: str, text: str) -> None:
    assert find(parse(path, text)) == []


def test_a_long_module_is_found() -> None:
    assert "a module of 401 lines" in str(find(parse("runtime/x.py", "x = 1\n" * 401))[0])
