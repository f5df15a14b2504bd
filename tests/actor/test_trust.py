from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from actor.client.channel import watch_credentials
from actor.trust import Trust
from actor.worker import Actor
from common.child import say_error
from common.config import ActorConfig
from common.errors import ConfigError, PluginError
from common.settings import validate
from learner.server import LearnerServer
from tests.conftest import PATIENCE, ROOT, Command


@pytest.mark.parametrize(
    ("host", "trust", "encrypted"),
    [
        ("127.0.0.1", {}, False),
        ("gpu-host", {}, True),
        ("gpu-host", {"insecure": True}, False),
        ("localhost", {"ca": "ca.pem"}, True),
        ("localhost", {"token_file": "token"}, True),
    ],
)
def test_tls_is_spoken_to_other_hosts_and_wherever_a_file_is_given(
    host: str, trust: dict[str, Any], encrypted: bool
) -> None:
    assert Trust(**trust).uses_tls(host) is encrypted


@pytest.mark.parametrize(
    ("trust", "message"),
    [
        ({"insecure": True, "ca": "ca.pem"}, "--insecure: expected none of ca beside it"),
        ({"insecure": True, "token_file": "t"}, "--insecure: expected none of token_file beside it"),
        ({"certificate": "c.pem"}, "--certificate and --key: expected both or neither"),
        ({"ca": "no.pem"}, "CA file no.pem: cannot be read"),
        ({"token_file": "no.token"}, "token file no.token: cannot be read"),
        ({"certificate": "no.pem", "key": "no.key"}, "private key no.key: cannot be read"),
        ({"ca": "pyproject.toml"}, "CA file pyproject.toml: expected certificates in PEM"),
    ],
)
def test_what_contradicts_itself_or_names_no_file_of_the_kind_is_refused(
    trust: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(ConfigError, match=message):
        watch_credentials("gpu-host:1", Trust(**trust))


def test_the_command_refuses_contradicting_options(start: Callable[..., Command]) -> None:
    worker = start("actor.cli", "--learner", "gpu-host.invalid:1", "--insecure", "--ca", "ca.pem")
    assert worker.wait() == 2
    assert "actor-worker: --insecure: expected none of ca beside it" in worker.output()


def config(**changes: Any) -> ActorConfig:
    values = {
        "env": {"target": "gymnasium:make", "params": {"id": "CartPole-v1"}},
        "agent": {"target": "mine.agents:A"},
    }
    return validate(ActorConfig, {**values, **changes})


COMMON = "common.processors"


@pytest.mark.parametrize("allow", [(), ("gymnasium", "mine", COMMON), ("gymnasium:make", "mine.agents:A", COMMON)])
def test_what_is_allowed_may_be_named(allow: tuple[str, ...]) -> None:
    Trust(allow=allow).check_names(config())


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"agent": {"target": "os:system"}}, "os:system"),
        ({"agent": {"target": "mineral.agents:A"}}, "mineral.agents:A"),
        ({"agent": {"target": "mine:A", "params": {"network": [{"target": "os:system"}]}}}, "os:system"),
        ({"env": {"target": "gymnasium:make", "params": {"id": "os.path:Any-v0"}}}, "os.path:Any-v0"),
        ({"step_processor": {"target": "antigravity:fly"}}, "antigravity:fly"),
    ],
)
def test_whatever_else_is_named_at_any_depth_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(PluginError, match=f"'{named}', which --allow gymnasium mine {COMMON} does not cover"):
        Trust(allow=("gymnasium", "mine", COMMON)).check_names(config(**changes))


def test_an_actor_ends_before_it_imports_what_is_not_allowed(host: LearnerServer) -> None:
    with pytest.raises(PluginError, match=r"the learner names 'tests\.parts:CountingEnv', which --allow common"):
        Actor(host.ingest.address, PATIENCE, Trust(allow=("common",)), say_error).run()
