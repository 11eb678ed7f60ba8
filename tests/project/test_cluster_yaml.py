"""`cluster.yaml` is a file that Ray's own launcher takes, and no node of it runs without authentication."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.scripts.scripts import start

from actors.slots import RUN_MEMORY
from serve_app.ray_environment import PROXY_GUARD

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("initialization_commands", "setup_commands", "head_start_ray_commands", "worker_start_ray_commands")


@pytest.fixture
def config() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    return loaded


def _starts(config: dict[str, Any]) -> list[str]:
    """Return the `ray start` commands."""
    both = [*config["head_start_ray_commands"], *config["worker_start_ray_commands"]]
    return [command for command in both if "ray start" in command]


def test_the_launcher_takes_it(config: dict[str, Any]) -> None:
    prepared = prepare_config(config)
    validate_config(prepared)  # against Ray's own ray-schema.json
    assert prepared["available_node_types"][prepared["head_node_type"]]["min_workers"] == len(
        config["provider"]["worker_ips"]
    )


def test_the_launcher_refuses_a_misspelt_key(config: dict[str, Any]) -> None:
    config["setup_comands"] = []
    with pytest.raises(Exception, match="setup_comands"):
        validate_config(prepare_config(config))


def test_serves_own_proxy_is_guarded_on_every_node(config: dict[str, Any]) -> None:
    assert all(f"RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH={PROXY_GUARD} " in command for command in _starts(config))


def test_every_node_is_told_its_authentication_mode_and_gets_the_token(config: dict[str, Any]) -> None:
    assert len(_starts(config)) == 2
    for command in _starts(config):
        assert re.search(r"\bRAY_AUTH_MODE=token \S+/ray start\b", command)
    assert "~/.ray/auth_token" in config["file_mounts"]


def test_every_node_offers_run_actors_a_place_with_options_that_ray_has(config: dict[str, Any]) -> None:
    known = {option for parameter in start.params for option in parameter.opts}
    for command in _starts(config):
        options = dict(word.partition("=")[::2] for word in shlex.split(command) if word.startswith("--"))
        assert set(options) <= known
        assert int(options["--memory"]) // RUN_MEMORY > 1


def test_what_goes_to_every_node_is_in_the_checkout_or_made_by_make(config: dict[str, Any]) -> None:
    local = set(config["file_mounts"].values()) - {"build/dist", "~/.ray/auth_token"}
    assert all((ROOT / path).exists() for path in local)


def test_every_command_is_sound_shell(config: dict[str, Any]) -> None:
    for command in (command for key in COMMANDS for command in config.get(key, [])):
        subprocess.run(["bash", "-n", "-c", command], check=True)
