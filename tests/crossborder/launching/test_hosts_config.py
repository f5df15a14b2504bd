from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from common.errors import ConfigError
from common.settings import validate
from crossborder.launching.hosts_config import LaunchConfig, load_hosts

LEARNER: dict[str, Any] = {"host": "op@gpu-host", "config": "run.yaml", "run_dir": "runs/a"}
VALUES: dict[str, Any] = {"learner": LEARNER, "actors": [{"host": "cpu-1", "num_actors": 4}]}


def refusal(**changes: Any) -> str:
    """What is said to these values in place of good ones."""
    with pytest.raises(ConfigError) as refused:
        validate(LaunchConfig, {**VALUES, **changes})
    return str(refused.value)


def test_actors_reach_the_learner_at_its_host_and_the_port_that_it_listens_on() -> None:
    assert validate(LaunchConfig, VALUES).learner.reached_at == "gpu-host:50051"
    for changes, found in (
        ({"listen": "0.0.0.0:7"}, "gpu-host:7"),
        ({"address": "10.0.0.5:8"}, "10.0.0.5:8"),
        ({"host": "fd00::1"}, "[fd00::1]:50051"),
    ):
        assert validate(LaunchConfig, {**VALUES, "learner": {**LEARNER, **changes}}).learner.reached_at == found


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"learner": {**LEARNER, "listen": "0.0.0.0:0"}}, "learner: listen: expected a port to which"),
        ({"learner": {**LEARNER, "address": "gpu-host"}}, "address: expected HOST:PORT"),
        ({"learner": {**LEARNER, "host": "-oProxyCommand=x"}}, "learner.host: "),
        ({"actors": []}, "actors: "),
        ({"python": "~/venv/bin/python"}, "python: "),
        ({"actors": [{"host": "a", "python": "venv/bin/python"}]}, "actors.0.python: "),
        (
            {"actors": [{"host": "a"}, {"host": "b"}, {"host": "a"}]},
            "expected each host once, with its num_actors, fou",
        ),
        ({"actors": [{"host": "a", "num_actor": 2}]}, "actors.0.num_actor: unknown key (did you mean 'num_actors'?)"),
        ({"trust": {"insecure": True, "ca": "ca.pem"}}, "trust: --insecure: expected none of ca beside it"),
        ({"trust": {"certificate": "a.pem"}}, "trust: --certificate and --key: expected both"),
    ],
)
def test_a_wrong_value_is_named(changes: dict[str, Any], found: str) -> None:
    assert found in refusal(**changes)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    for text, found in (
        (None, "cannot be read"),
        ("a: [", "not valid YAML"),
        ("- a", "expected a mapping, found list"),
    ):
        if text is not None:
            path.write_text(text)
        with pytest.raises(ConfigError, match=found):
            load_hosts(path)
    path.write_text(yaml.safe_dump(VALUES))
    assert load_hosts(path).actors[0].num_actors == 4
