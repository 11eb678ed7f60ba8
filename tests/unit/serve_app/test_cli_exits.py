"""The exit code of every command, and one line on stderr that says what to do."""

from __future__ import annotations

import json

import pytest
from cli_program import Outlast
from fake_instance import FakeInstance, Refuse, text

from runtime import errors
from runtime.process import current
from serve_app.commands.exits import Exit, of_error
from serve_app.trials import Patience, Refusal

COMMANDS = [
    ["run", "x"],
    ["tail", "r"],
    ["ps"],
    ["show", "r"],
    ["cancel", "r"],
    ["takeover", "r"],
    ["stop"],
]
ENDINGS = [
    ("completed", None, 0),
    ("failed", {"message": "It broke.", "code": "agent_exit"}, 1),
    ("aborted", {"message": "Cancelled.", "code": "aborted"}, 3),
    ("interrupted", None, 0),
]


def one_line(stderr: str) -> str:
    """Return the error, which must be the only line."""
    (line,) = stderr.splitlines()
    assert line.startswith("outlast: ")
    return line


@pytest.mark.parametrize(("status", "error", "code"), ENDINGS)
def test_run_and_tail_end_as_the_run_does(
    fake: FakeInstance, outlast: Outlast, status: str, error: dict[str, str] | None, code: int
) -> None:
    run = fake.start("r")
    run.add(text("hello\n"))
    run.finish(status, error)
    for result in (outlast("tail", "r"), outlast("run", "--run", "r", "x")):
        assert (result.exit_code, result.stdout) == (code, "hello\n")
        why = f": {error['message']} ({error['code']})" if error else ""
        assert result.stderr.endswith(f"run r {status}{why}\n")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_without_an_instance_every_command_says_how_to_start_one(outlast: Outlast, command: list[str]) -> None:
    result = outlast(*command)
    assert result.exit_code == 5
    assert result.stdout == ""
    assert f"No instance runs in {outlast.data_dir}" in result.stderr


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"url": 1}', b"\xff"])
def test_an_instance_json_that_says_nothing_is_no_instance(outlast: Outlast, content: bytes) -> None:
    (outlast.data_dir / "instance.json").write_bytes(content)
    assert outlast("ps").exit_code == 5
    assert outlast("stop").exit_code == 5


@pytest.mark.parametrize("command", COMMANDS[:-1], ids=lambda command: command[0])
def test_an_instance_that_was_killed_is_no_instance(fake: FakeInstance, outlast: Outlast, command: list[str]) -> None:
    fake.down()
    result = outlast(*command)
    assert result.exit_code == 5
    assert "does not answer" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", ["tail", "show", "cancel", "takeover"])
def test_an_unknown_run_is_not_found(fake: FakeInstance, outlast: Outlast, command: str) -> None:
    result = outlast(command, "nobody")
    assert result.exit_code == 4
    assert one_line(result.stderr) == "outlast: There is no run 'nobody'."


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (400, "harness_unknown", 2),
        (401, "token_missing", 6),
        (403, "origin_refused", 6),
        (404, "run_not_found", 4),
        (409, "thread_active", 6),
        (413, "body_too_large", 6),
        (415, "media_type_unsupported", 6),
        (429, "too_many_runs", 6),
    ],
)
def test_a_refusal_is_final_and_in_the_words_of_the_instance(
    fake: FakeInstance, outlast: Outlast, status: int, code: str, exit_code: int
) -> None:
    fake.faults.append(Refuse(status, code, "Do it otherwise."))
    result = outlast("run", "x")
    assert result.exit_code == exit_code
    assert result.stderr.endswith("outlast: Do it otherwise.\n")
    assert len(fake.streams()) == 1


def test_a_store_that_needs_a_person_is_a_refusal_at_once(fake: FakeInstance, outlast: Outlast) -> None:
    fake.faults.append(Refuse(503, "store_full", "No space is left.", retry_after="30"))
    result = outlast("run", "x")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (6, "outlast: No space is left.")


def test_a_short_trouble_at_the_start_is_waited_out(fake: FakeInstance, outlast: Outlast) -> None:
    fake.faults.extend([Refuse(503), Refuse(502, body=b"bad gateway")])
    assert outlast("run", "x").exit_code == 0


def test_a_server_that_is_no_instance_is_told_from_one(fake: FakeInstance, outlast: Outlast) -> None:
    fake.refusals["/api/runs"] = Refuse(404, body=b"<html>not here</html>")
    result = outlast("ps")
    assert result.exit_code == 5
    assert "not as an Outlast instance" in one_line(result.stderr)
    fake.refusals["/api/runs"] = Refuse(200, body=b"<html>hello</html>")
    result = outlast("ps")
    assert (result.exit_code, "not as an Outlast instance" in one_line(result.stderr)) == (5, True)


def test_an_instance_that_starts_is_waited_for(fake: FakeInstance, outlast: Outlast) -> None:
    """Its process is alive, and it does not answer yet."""
    me = current()
    fake.describe(me.pid, me.pid_started_at)
    fake.refusals["/api/runs"] = Refuse(404, body=b"no application yet")
    result = outlast("ps", patience=Patience(first_s=0.1, pause_s=0.002))
    assert result.exit_code == 5
    assert len([asked for asked in fake.asked if asked.path == "/api/runs"]) > 1


def test_takeover_of_an_ended_run_is_refused(fake: FakeInstance, outlast: Outlast) -> None:
    fake.start("r").finish()
    assert outlast("takeover", "r").exit_code == 6


USAGE = [
    ["run"],
    ["run", ""],
    ["run", "  \n"],
    ["run", "a", "b"],
    ["run", "--option", "novalue", "x"],
    ["run", "--option", "=v", "x"],
    ["run", "--option", "a=1", "--option", "a=2", "x"],
    ["run", "--run", "not an id", "x"],
    ["run", "--run", "a" * 129, "x"],
    ["run", "--thread", "", "x"],
    ["run", "--no-such-option", "x"],
    ["tail"],
    ["tail", "ä"],
    ["tail", "r", "--from", "7"],
    ["tail", "r", "--from", "0000000000000000_000000000000000x"],
    ["ps", "extra"],
    ["ps", "--limit", "0"],
    ["ps", "--limit", "many"],
    ["ps", "--status", "dead"],
    ["ps", "--thread", "a b"],
    ["show"],
    ["show", "a/b"],
    ["show", "r", "s"],
    ["cancel"],
    ["cancel", ""],
    ["takeover", "r r"],
    ["takeover"],
    ["stop", "now"],
    ["stop", "--force"],
    ["serve", "--port", "0"],
    ["serve", "--port", "http"],
    ["serve", "here"],
    ["doctor", "--fix"],
    ["ps", "--url", "127.0.0.1:8000"],
    ["ps", "--url", "ftp://host"],
    ["ps", "--url", "http://"],
    ["ps", "--url", "http://host:port"],
    ["ps", "--url", ""],
    ["no-such-command"],
    ["--no-such-option"],
]


@pytest.mark.parametrize("command", USAGE, ids=" ".join)
def test_a_usage_error_is_one_line_and_asks_nobody(fake: FakeInstance, outlast: Outlast, command: list[str]) -> None:
    result = outlast(*command)
    assert result.exit_code == 2
    assert result.stdout == ""
    one_line(result.stderr)
    assert not fake.asked


def test_an_empty_or_broken_standard_input_is_a_usage_error(fake: FakeInstance, outlast: Outlast) -> None:
    assert outlast("run", "-", input=b"").exit_code == 2
    assert outlast("run", "-", input=b"\xff\xfe").exit_code == 2
    assert not fake.asked


def test_a_message_that_is_not_text_is_a_usage_error(fake: FakeInstance, outlast: Outlast) -> None:
    result = outlast("run", "caf\udce9")  # what Python makes of a byte that is not UTF-8 in an argument
    assert (result.exit_code, fake.asked) == (2, [])


def test_a_misspelt_setting_is_a_usage_error(outlast: Outlast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLAST_DATADIR", "/nowhere")
    result = outlast("ps")
    assert result.exit_code == 2
    assert "OUTLAST_DATA_DIR" in one_line(result.stderr)


def test_without_a_command_the_help_is_shown(outlast: Outlast) -> None:
    result = outlast()
    assert result.exit_code == 2
    assert "doctor" in result.stderr
    assert outlast("--help").exit_code == 0
    assert outlast("--version").stdout.startswith("outlast")


@pytest.mark.parametrize("command", ["serve", "run", "tail", "ps", "show", "cancel", "takeover", "stop", "doctor"])
def test_every_command_has_help(outlast: Outlast, command: str) -> None:
    assert outlast(command, "--help").exit_code == 0


def test_url_names_an_instance_without_a_data_directory(fake: FakeInstance, outlast: Outlast) -> None:
    (outlast.data_dir / "instance.json").unlink()
    assert outlast("run", "--url", fake.url + "/", "x").stdout == "hello\n"
    assert json.loads(outlast("ps", "--json", "--url", fake.url).stdout)


def test_where_the_instance_is_may_be_said_before_the_command(fake: FakeInstance, outlast: Outlast) -> None:
    (outlast.data_dir / "instance.json").unlink()
    fake.start("r")
    for where in (["--url", fake.url], [f"--url={fake.url}"]):
        (record,) = json.loads(outlast(*where, "ps", "--json").stdout)
        assert record["runId"] == "r"
    assert outlast("--data-dir", str(outlast.data_dir), "ps").exit_code == 5
    assert outlast("--url", fake.url).exit_code == 2  # no command at all
    assert outlast("--url").exit_code == 2
    assert outlast("--url", fake.url, "serve").exit_code == 2  # it has no such option


def test_a_run_that_is_refused_says_why_and_nothing_else(fake: FakeInstance, outlast: Outlast) -> None:
    fake.faults.append(Refuse(409, "thread_active", "Thread t is busy."))
    assert one_line(outlast("run", "x").stderr) == "outlast: Thread t is busy."


def test_nobody_is_told_of_another_try_that_is_not_made(fake: FakeInstance, outlast: Outlast) -> None:
    url = fake.url
    fake.down()
    result = outlast("run", "--url", url, "x", patience=Patience())
    assert (result.exit_code, "Trying again" in result.stderr) == (5, False)


def test_a_url_that_nobody_answers_is_given_up_at_once(fake: FakeInstance, outlast: Outlast) -> None:
    url = fake.url
    fake.down()
    result = outlast("ps", "--url", url, patience=Patience())
    assert (result.exit_code, url in one_line(result.stderr)) == (5, True)


def test_a_bug_has_an_exit_code_of_its_own(fake: FakeInstance, outlast: Outlast) -> None:
    fake.refusals["/api/runs"] = Refuse(200, body=b"{}")
    result = outlast("ps")
    assert result.exit_code == 70
    assert "Traceback" in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InputInvalid("x"), Exit.USAGE),
        (errors.RunNotFound("r"), Exit.NOT_FOUND),
        (errors.PortInUse("x"), Exit.NO_INSTANCE),
        (errors.StoreRefused("x"), Exit.REFUSED),
        (Refusal(409, "run_ended", "x"), Exit.REFUSED),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_of_serve_have_exit_codes(error: errors.OutlastError, code: Exit) -> None:
    assert of_error(error) is code
