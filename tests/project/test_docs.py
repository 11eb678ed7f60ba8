"""What the documents name exists."""

from __future__ import annotations

from pathlib import Path

import pytest
from doc_names import missing

ROOT = Path(__file__).resolve().parents[2]
EXPECTED = (ROOT / "README.md", ROOT / "ARCHITECTURE.md")
DOCUMENTS = sorted({*EXPECTED, *(ROOT / "docs").glob("**/*.md")})


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_document_names_exists(document: Path) -> None:
    if not document.exists():
        pytest.skip(f"{document.name} is not written yet")
    assert missing(ROOT, document) == []


def test_a_name_that_does_not_exist_is_found(tmp_path: Path) -> None:
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime" / "real.py").write_text("def test_real(): ...\n")
    document = tmp_path / "README.md"
    document.write_text(
        "`runtime/real.py`, `runtime/real.py::test_real`, `runtime/`, [it](runtime/real.py#x), `build/bench.json`\n"
        "`GET /runs/x`, `https://host/x.md`, `/api/chat`, `runtime.ports`, `*.py`\n"
        "```\n`runtime/in_a_fence.py`\n```\n"
        "`runtime/gone.py`, `gone.md`, [it](docs/gone.md), `runtime/real.py::test_gone`, `runtime/gone`\n"
    )
    assert missing(tmp_path, document) == [
        "README.md:6: there is no runtime/gone.py",
        "README.md:6: there is no gone.md",
        "README.md:6: runtime/real.py has no test_gone",
        "README.md:6: there is no runtime/gone",
        "README.md:6: there is no docs/gone.md",
    ]
