"""What a run made of its workspace, as it is told afterwards: on folders alone, no agent and no instance."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from runtime.core.result import Form
from runtime.sandboxes import baseline, results
from runtime.sandboxes.baseline import Gone, TooMuch
from runtime.sandboxes.results import read

MUCH = 1 << 30


class Space:
    """A workspace, and the baselines of its runs."""

    def __init__(self, folder: Path) -> None:
        self.place = folder / "workspace"
        self.place.mkdir()
        self.baselines = folder / "baselines"

    def begin(self, run: str = "run-1") -> None:
        baseline.take(str(self.place), str(self.baselines), run, baseline.write)

    def begun(self) -> list[str]:
        return [path.name for path in self.baselines.iterdir()]

    def put(self, path: str, text: str | bytes = "") -> Path:
        made = self.place / path
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_bytes(text if isinstance(text, bytes) else text.encode())
        return made

    def pieces(self, form: Form, run: str = "run-1", max_bytes: int = MUCH) -> Iterator[bytes]:
        return read(self.place, self.baselines, run, form, max_bytes)

    def files(self, run: str = "run-1") -> dict[str, tuple[str, int]]:
        told: list[dict[str, Any]] = json.loads(b"".join(self.pieces(Form.FILES, run)))
        return {one["path"]: (one["change"], one["bytes"]) for one in told}

    def diff(self, run: str = "run-1") -> str:
        return b"".join(self.pieces(Form.DIFF, run)).decode()

    def archive(self, run: str = "run-1") -> tarfile.TarFile:
        return tarfile.open(fileobj=io.BytesIO(b"".join(self.pieces(Form.ARCHIVE, run))), mode="r:gz")


@pytest.fixture
def space(tmp_path: Path) -> Space:
    return Space(tmp_path)


def test_files_are_told_as_created_modified_and_deleted(space: Space) -> None:
    space.put("kept", "as it was")
    space.put("src/changed", "one\n")
    space.put("gone", "x")
    space.begin()
    space.put("src/changed", "one\ntwo\n")
    space.put("new/file", "abc")
    (space.place / "gone").unlink()
    (space.place / "empty").mkdir()
    assert space.files() == {"gone": ("deleted", 0), "new/file": ("created", 3), "src/changed": ("modified", 8)}


def test_nothing_changed_is_an_empty_list_and_an_empty_diff(space: Space) -> None:
    space.put("kept", "as it was")
    space.begin()
    assert space.files() == {}
    assert not space.diff()


def test_a_file_written_anew_with_the_same_text_is_not_changed(space: Space) -> None:
    space.put("same", "text")
    space.begin()
    (space.place / "same").unlink()
    space.put("same", "text")
    assert space.files() == {}


def test_a_change_that_hides_its_time_is_seen(space: Space) -> None:
    made = space.put("file", "aaaa")
    seen = made.stat()
    space.begin()
    made.write_text("bbbb")
    os.utime(made, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert space.files() == {"file": ("modified", 4)}


def test_what_an_agents_own_git_keeps_is_in_the_archive_alone(space: Space) -> None:
    space.begin()
    space.put("sub/.git/objects/aa", "x")
    space.put("sub/file", "x")
    assert list(space.files()) == ["sub/file"]
    assert "sub/.git/objects/aa" in space.archive().getnames()


def test_links_are_told_of_and_never_followed(space: Space, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    space.put("was/file", "x")
    space.begin()
    shutil.rmtree(space.place / "was")
    (space.place / "was").symlink_to(outside)
    (space.place / "link").symlink_to(outside / "secret")
    assert set(space.files()) == {"was/file", "was", "link"}
    assert "+secret" not in space.diff()
    assert {one.name: one.linkname for one in space.archive()} == {
        "link": str(outside / "secret"),
        "was": str(outside),
    }


def test_a_link_in_the_place_of_the_workspace_is_no_workspace(space: Space, tmp_path: Path) -> None:
    space.begin()
    space.place.rename(tmp_path / "moved")
    space.place.symlink_to(tmp_path)
    for form in Form:
        with pytest.raises(Gone):
            next(space.pieces(form))


def test_what_is_no_file_is_not_opened(space: Space) -> None:
    space.begin()
    os.mkfifo(space.place / "fifo")
    space.put("file", "x")
    assert list(space.files()) == ["file"]
    assert space.archive().getnames() == ["file"]


def test_names_that_would_pass_for_a_line_are_quoted(space: Space) -> None:
    space.begin()
    space.put('a\n+++ b/"x"\\', "x\n")
    assert 'diff --git "a/a\\n+++ b/\\"x\\"\\\\" "b/a\\n' in space.diff()
    assert list(space.files()) == ['a\n+++ b/"x"\\']


def test_a_name_that_is_no_text_is_told_of_and_archived(space: Space) -> None:
    space.begin()
    (Path(os.fsdecode(os.fsencode(space.place) + b"/caf\xe9"))).write_text("x\n")
    assert list(space.files()) == ["caf\\xe9"]
    assert '"b/caf\\351"' in space.diff()
    assert [os.fsencode(name) for name in space.archive().getnames()] == [b"caf\xe9"]


def test_what_is_no_text_is_named_and_not_dumped(space: Space) -> None:
    space.put("data", b"\0\1\2")
    space.put("large", "a" * (baseline.FILE_BYTES + 1))
    space.begin()
    space.put("data", b"\0\1\2\3")
    space.put("large", "b" * (baseline.FILE_BYTES + 2))
    assert [line for line in space.diff().split("\n") if not line.startswith("diff ")] == [
        "Binary files a/data and b/data differ",
        "Binary files a/large and b/large differ",
        "",
    ]


def test_a_piece_is_not_waited_for_until_it_is_large(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    space.begin()
    for at in range(3):
        space.put(f"file-{at}", "x\n")
    (whole,) = space.pieces(Form.DIFF)
    monkeypatch.setattr(results, "HELD_S", 0.0)
    pieces = list(space.pieces(Form.DIFF))
    assert len(pieces) > 3
    assert b"".join(pieces) == whole
    assert all(space.pieces(Form.ARCHIVE)), "an empty one is the end"


def _sides() -> Iterator[tuple[bytes, bytes]]:
    texts = [b"", b"a\n", b"a", b"a\nb\nc\n", b"a\nc", b"\n\n", b"x\r\ny\r\n", "ü\u2028z\n".encode()]
    yield from product(texts, texts)
    dice = random.Random(4)  # noqa: S311 - the same each time
    for _ in range(40):
        lines = [b"%d\n" % dice.randrange(9) for _ in range(dice.randrange(60))]
        other = [line for line in lines if dice.random() < 0.8]
        for _ in range(dice.randrange(5)):
            other.insert(dice.randrange(len(other) + 1), b"new\n")
        yield b"".join(lines), b"".join(other)


@pytest.mark.parametrize("bound", [1_000_000, 0])
def test_git_makes_the_new_tree_of_the_old_one_by_the_diff(
    space: Space, tmp_path: Path, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.sandboxes.diffing.MAX_WORK", bound)
    sides = list(_sides())
    for at, (old, _) in enumerate(sides):
        space.put(f"f {at}", old)
    space.put("gone", "x\ny")
    space.put("tool", "x\n")
    (space.place / "link").symlink_to("gone")
    (space.place / "turned").symlink_to("gone")
    space.begin()
    copy = tmp_path / "copy"
    shutil.copytree(space.place, copy, symlinks=True)
    for at, (_, new) in enumerate(sides):
        space.put(f"f {at}", new)
    space.put("new/\ttab", "x")
    space.put("new/empty")
    (space.place / "gone").unlink()
    (space.place / "tool").chmod(0o755)
    (space.place / "link").unlink()
    (space.place / "link").symlink_to("new")
    (space.place / "turned").unlink()
    space.put("turned", "now a file\n")
    patch = b"".join(space.pieces(Form.DIFF))
    subprocess.run(["git", "apply", "--whitespace=nowarn"], cwd=copy, input=patch, check=True, timeout=30)
    assert _tree(copy) == _tree(space.place)


def _tree(folder: Path) -> dict[str, tuple[bytes | str, bool]]:
    return {
        str(path.relative_to(folder)): (
            str(path.readlink()) if path.is_symlink() else path.read_bytes(),
            not path.is_symlink() and bool(path.stat().st_mode & 0o100),
        )
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def test_an_archive_holds_the_whole_workspace(space: Space, tmp_path: Path) -> None:
    space.put("a/b/file", os.urandom(300_000))
    space.put("tool").chmod(0o755)
    (space.place / "link").symlink_to("tool")
    with space.archive() as archive:
        archive.extractall(tmp_path / "out", filter="data")
    assert _tree(tmp_path / "out") == _tree(space.place)


def test_a_file_that_shrinks_while_it_is_archived_keeps_the_length_of_its_head(space: Space) -> None:
    space.put("a", os.urandom(4 * results.PIECE))  # the first pieces are of it alone
    space.put("b", "x" * 1000)
    pieces = space.pieces(Form.ARCHIVE)
    first = next(pieces)
    (space.place / "a").write_bytes(b"")
    with tarfile.open(fileobj=io.BytesIO(first + b"".join(pieces)), mode="r:gz") as archive:
        assert {one.name: one.size for one in archive} == {"a": 4 * results.PIECE, "b": 1000}


@pytest.mark.parametrize(
    ("form", "size"),
    [
        (Form.ARCHIVE, 4 * (2000 + 512 + len("file-0"))),
        (Form.DIFF, 4 * (2000 + len("file-0"))),
        (Form.FILES, 4 * len('{"path":"file-0","change":"created","bytes":2000}')),
    ],
)
def test_what_is_too_large_is_refused_before_the_first_byte(space: Space, form: Form, size: int) -> None:
    space.begin()
    for at in range(4):
        space.put(f"file-{at}", "x\n" * 1000)
    with pytest.raises(TooMuch, match="OUTLAST_WORKSPACE_MAX_BYTES"):
        next(space.pieces(form, max_bytes=size - 1))
    assert b"".join(space.pieces(form, max_bytes=size))


def _deeper(space: Space, levels: int) -> None:
    """Make folders in folders from within, as no path could."""
    folder = os.open(space.place, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d" * 255, dir_fd=folder)
        inner = os.open("d" * 255, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)


def test_names_are_bounded_one_by_one_and_together(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    space.begin("run-1")
    _deeper(space, 15)
    assert space.archive().getnames()[-1].count("d" * 255) == 15
    with monkeypatch.context() as changed:
        changed.setattr(baseline, "NAMES_BYTES", 4096)
        for form in Form:
            with pytest.raises(TooMuch, match="names are over 4096"):
                next(space.pieces(form))
    (space.place / "d").symlink_to("d" * 4000)
    with monkeypatch.context() as changed:
        changed.setattr(baseline, "NAMES_BYTES", 4000)
        with pytest.raises(TooMuch, match="names are over 4000"):
            next(space.pieces(Form.FILES))
    shutil.rmtree(space.place / ("d" * 255))
    _deeper(space, 17)
    for form in Form:
        with pytest.raises(TooMuch, match="a path of over 4096"):
            next(space.pieces(form))
    space.begin("run-2")
    assert space.begun() == ["run-1"]


def test_too_many_and_too_deep_are_refused_and_have_no_baseline(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    space.begin("run-1")
    for at in range(5):
        space.put(f"file-{at}")
    space.put("/".join("d" * 6))
    for bound in ("MAX_ENTRIES", "MAX_DEPTH"):
        with monkeypatch.context() as changed:
            changed.setattr(baseline, bound, 4)
            for form in Form:
                with pytest.raises(TooMuch, match=r"over 4 f|over 4 files"):
                    next(space.pieces(form))
            space.begin("run-2")
            assert space.begun() == ["run-1"]


def test_a_baseline_is_placed_once(space: Space) -> None:
    space.put("file", "before")
    space.begin()
    space.put("file", "the agent's")
    space.begin()  # a successor, or a driver that stood still
    assert space.files() == {"file": ("modified", 11)}


def test_of_two_who_take_a_baseline_at_once_the_first_places_it(space: Space) -> None:
    space.put("file", "before")

    def slowly(workspace: str, out: Any, before: Any) -> None:
        space.begin()
        space.put("file", "the agent's")
        baseline.write(workspace, out, before)

    baseline.take(str(space.place), str(space.baselines), "run-1", slowly)
    assert space.files() == {"file": ("modified", 11)}
    assert space.begun() == ["run-1"]


def test_a_later_run_begins_where_the_one_before_ended(space: Space) -> None:
    space.begin("run-1")
    space.put("first", "1\n")
    space.begin("run-2")
    space.put("second", "2\n")
    (space.place / "first").unlink()
    assert space.files("run-1") == {"first": ("created", 2)}
    assert "+1" in space.diff("run-1")
    assert space.files("run-2") == {"first": ("deleted", 0), "second": ("created", 2)}
    with pytest.raises(Gone) as refused:
        next(space.pieces(Form.ARCHIVE, "run-1"))
    assert refused.value.code == "workspace_changed"


def test_the_newest_baselines_are_kept_and_hold_what_the_older_ones_held(space: Space) -> None:
    space.put("file", "text\n" * 100)
    for at in range(baseline.BASELINES + 2):
        space.begin(f"run-{at}")
    assert len(space.begun()) == baseline.BASELINES
    with pytest.raises(Gone) as refused:
        space.files("run-0")
    assert refused.value.code == "baseline_gone"
    space.put("file", "text\n" * 99)
    assert space.diff(f"run-{baseline.BASELINES + 1}").count("\n-text") == 1


def test_a_baseline_that_is_cut_off_or_foreign_is_gone(space: Space) -> None:
    space.put("file", "text\n")
    space.begin()
    whole = (space.baselines / "run-1").read_bytes()
    for at in range(len(whole)):
        (space.baselines / "run-1").write_bytes(whole[:at])
        with pytest.raises(Gone) as refused:
            space.files()
        assert refused.value.code == "baseline_gone"
    space.begin("run-2")  # it is of no use to the next one, and does not keep it from being taken
    assert space.files("run-2") == {}


def test_contents_are_kept_up_to_a_bound_and_the_rest_is_named(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline, "KEPT_BYTES", 1)
    space.put("a", "one\n")
    space.put("b", "one\n")
    space.begin()
    space.put("a", "two\n")
    space.put("b", "two\n")
    assert "+two" in space.diff()
    assert "Binary files a/b and b/b differ" in space.diff()
