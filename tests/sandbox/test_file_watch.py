"""What a watch of a workspace tells, and by which keys two of them know that they mean the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.sandboxes import baseline, file_watch
from runtime.sandboxes.baseline import TooMuch
from runtime.sandboxes.file_watch import FileWatch


class Watched:
    def __init__(self, folder: Path) -> None:
        self.place = folder / "workspace"
        self.place.mkdir()
        self._baselines = folder / "baselines"

    def launch(self) -> None:
        baseline.take(str(self.place), str(self._baselines), "run-1", baseline.write)

    def watch(self, *, diffs: bool = False) -> FileWatch:
        return FileWatch(str(self.place), str(self._baselines / "run-1"), diffs=diffs)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def told(watch: FileWatch) -> list[tuple[str, str]]:
    return [(change["type"], change["path"]) for change in watch.look()]


def test_each_look_tells_what_changed_since_the_last(watched: Watched) -> None:
    (watched.place / "old").write_text("x")
    watched.launch()
    watch = watched.watch()
    assert told(watch) == []
    (watched.place / "new").write_text("x")
    (watched.place / "old").write_text("xx")
    assert told(watch) == [("create", "new"), ("change", "old")]
    (watched.place / "new").unlink()
    (watched.place / "folder").mkdir()
    assert told(watch) == [("delete", "new")]
    assert told(watch) == []


def test_a_successor_tells_what_its_predecessor_told_by_the_same_keys(watched: Watched) -> None:
    for name in ("changed", "gone", "changed-and-gone"):
        (watched.place / name).write_text("x")
    watched.launch()
    first = watched.watch()
    (watched.place / "new").write_text("x")
    (watched.place / "changed").write_text("xx")
    (watched.place / "changed-and-gone").write_text("xx")
    keys = {change["key"] for change in first.look()}
    (watched.place / "gone").unlink()
    (watched.place / "changed-and-gone").unlink()
    keys |= {change["key"] for change in first.look()}
    second = watched.watch().look()
    assert {change["path"] for change in second} == {"new", "changed", "gone", "changed-and-gone"}
    assert {change["key"] for change in second} <= keys


def test_what_comes_again_after_it_was_deleted_has_new_keys(watched: Watched) -> None:
    (watched.place / "file").write_text("x")
    watched.launch()
    watch = watched.watch()
    keys = []
    for _ in range(2):
        (watched.place / "file").unlink()
        keys += [change["key"] for change in watch.look()]
        (watched.place / "file").write_text("y")
        keys += [change["key"] for change in watch.look()]
    assert len(set(keys)) == 4


def test_much_is_told_in_bounded_pieces(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_watch, "MAX_CHANGES", 3)
    (watched.place / "z-gone").write_text("x")
    watched.launch()
    for at in range(5):
        (watched.place / f"file-{at}").write_text("x")
    (watched.place / "z-gone").unlink()
    watch = watched.watch()
    looks = [told(watch) for _ in range(3)]
    assert [len(look) for look in looks] == [3, 3, 0]
    assert looks[1][-1] == ("delete", "z-gone")


def test_of_too_many_files_nothing_is_told(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_watch, "MAX_FILES", 3)
    watched.launch()
    for at in range(4):
        (watched.place / f"file-{at}").write_text("x")
    with pytest.raises(TooMuch):
        watched.watch().look()


def test_of_too_long_names_nothing_is_told(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_watch, "NAMES_BYTES", 20)
    watched.launch()
    (watched.place / "a-name-of-20-letters").touch()
    assert told(watched.watch()) == [("create", "a-name-of-20-letters")]
    (watched.place / "b").touch()
    with pytest.raises(TooMuch, match="names"):
        watched.watch().look()


def test_a_diff_is_against_what_the_file_was_at_the_launch(watched: Watched) -> None:
    (watched.place / "file").write_text("one\n")
    watched.launch()
    watch = watched.watch(diffs=True)
    for text, added in (("one\ntwo\n", "+two\n"), ("one\ntwo\nthree\n", "+two\n+three\n")):
        (watched.place / "file").write_text(text)
        (change,) = watch.look()
        assert change["diff"] is not None
        assert change["diff"].endswith(f" one\n{added}")
    (watched.place / "new").write_bytes(b"x" * (file_watch.DIFF_BYTES + 1))
    (change,) = watch.look()
    assert change["diff"] is None


def test_what_is_being_written_waits_for_one_look(watched: Watched) -> None:
    watched.launch()
    watch = watched.watch()
    (watched.place / "file").touch()
    assert watch.look(settled=False) == []
    (watched.place / "file").write_text("x")
    assert [(change["type"], change["path"]) for change in watch.look(settled=False)] == [("create", "file")]
    (watched.place / "file").write_text("xx")
    assert watch.look(settled=False) == []
    assert told(watch) == [("change", "file")]


def test_the_whole_diff_is_what_differs_from_the_launch_whatever_was_told(watched: Watched) -> None:
    for name in ("changed", "gone", "kept", "touched"):
        (watched.place / name).write_text("x\n")
    watched.launch()
    watch = watched.watch(diffs=True)
    (watched.place / "changed").write_text("y\n")
    (watched.place / "gone").unlink()
    (watched.place / "touched").write_text("x\n")
    told(watch)
    (watched.place / "new").write_text("z\n")
    facts = watch.whole(1 << 20, 600.0)
    assert facts["truncated"] is False
    assert [line for line in facts["diff"].split("\n") if line.startswith(("diff", "+", "-"))] == [
        "diff --git a/changed b/changed", "--- a/changed", "+++ b/changed", "-x", "+y",
        "diff --git a/gone b/gone", "--- a/gone", "+++ /dev/null", "-x",
        "diff --git a/new b/new", "--- /dev/null", "+++ b/new", "+z",
    ]  # fmt: skip
    assert told(watch) == [("create", "new")], "a look is as it was"


def test_of_a_whole_diff_the_files_are_left_out_that_do_not_fit_and_what_is_not_found_in_time(watched: Watched) -> None:
    watched.launch()
    (watched.place / "a").write_text("long\n" * 1000)
    (watched.place / "b").write_text("short\n")
    facts = watched.watch(diffs=True).whole(1000, 600.0)
    assert facts["truncated"] is True
    assert facts["diff"].startswith("diff --git a/b b/b\n")
    assert facts["diff"].endswith("\n+short\n")
    assert watched.watch(diffs=True).whole(1000, -1.0) == {"diff": "", "truncated": True}


def test_there_is_no_whole_diff_of_a_workspace_whose_beginning_nobody_knows(watched: Watched) -> None:
    with pytest.raises(TooMuch):
        watched.watch(diffs=True).whole(1000, 600.0)
