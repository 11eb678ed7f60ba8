"""What may be a hook, and what one is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from unit.engine.stage import spec

from actors.compose import hook_sets
from runtime.core.record import Head, Notice, OnDisconnect, RunError, Status
from runtime.errors import InputInvalid
from runtime.hooks import NAMES, RunFacts
from runtime.settings import load
from serve_app.commands import checks


def test_a_class_and_an_instance_are_taken_and_what_they_override_is_known() -> None:
    settings = load({}, hooks="hook_classes:Noting, hook_classes:AN_INSTANCE, hook_classes:Raising")
    made, instance, raising = hook_sets(settings)
    assert made.names == instance.names == frozenset(NAMES)
    assert raising.names == {"start", "finish"}
    assert raising.call("error") is None


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("no_such_module:Hooks", "cannot be loaded on this node"),
        ("hook_classes:Missing", "cannot be loaded on this node"),
        ("hook_classes", "cannot be loaded on this node"),
        ("hook_classes:Broken", "ValueError: no password"),
        ("hook_classes:Empty", "overrides none of start, attach"),
        ("hook_classes:noted", "neither a class derived from"),
        ("json:loads", "neither a class derived from"),
    ],
)
def test_what_is_no_hook_is_refused_by_name_and_doctor_says_it(path: str, said: str) -> None:
    settings = load({}, hooks=path)
    with pytest.raises(InputInvalid, match="OUTLAST_HOOKS") as refused:
        hook_sets(settings)
    assert said in refused.value.message
    assert repr(path) in refused.value.message
    check = checks.hooks(settings)
    assert (check.ok, check.detail) == (False, refused.value.message)


def test_doctor_names_hooks_and_webhooks(tmp_path: Path) -> None:
    file = tmp_path / "webhooks"
    file.write_text(f"billing https://example.org/x whsec_{'A' * 32}\n")
    file.chmod(0o600)
    check = checks.hooks(load({}, hooks="hook_classes:Raising", webhooks_file=str(file)))
    assert check == ("hooks", True, "hook_classes:Raising (finish, start), webhook billing")
    file.chmod(0o644)
    assert not checks.hooks(load({}, webhooks_file=str(file))).ok
    assert checks.hooks(load({})).ok


def test_facts_say_what_became_of_a_run_and_nothing_that_it_said() -> None:
    error = RunError(message="the password is 1234", code="agent_exit")
    head = Head(
        run_id="ann@run-1",
        thread_id="thread-1",
        owner="ann",
        digest="d",
        created_at=1,
        status=Status.FAILED,
        finished_at=3,
        error=error,
        detached_since=2,
        notice=Notice(),
    )
    facts = RunFacts.of(head, spec(on_disconnect=OnDisconnect.CANCEL))
    assert (facts.run_id, facts.owner, facts.status, facts.code) == ("run-1", "ann", "failed", "agent_exit")
    assert (facts.detachable, facts.detached) == (False, True)
    assert "1234" not in json.dumps(facts.to_wire())
    assert "messages" not in json.dumps(facts.to_wire())
