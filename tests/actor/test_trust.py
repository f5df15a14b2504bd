from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actor.cli import main
from actor.trust import Trust
from common.config import ActorConfig
from common.errors import PluginError
from common.settings import validate

HERE, ELSEWHERE = "127.0.0.1:1", "gpu-host.invalid:1"


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
    ("arguments", "message"),
    [
        (["--insecure", "--ca", "ca.pem"], "--insecure: expected none of ca beside it"),
        (["--insecure", "--token-file", "t"], "--insecure: expected none of token_file beside it"),
        (["--certificate", "c.pem"], "--certificate and --key: expected both or neither"),
        (["--ca", "no.pem"], "CA file no.pem: cannot be read"),
        (["--token-file", "no.token"], "token file no.token: cannot be read"),
        (["--certificate", "no.pem", "--key", "no.key"], "private key no.key: cannot be read"),
    ],
)
def test_options_that_contradict_each_other_or_name_no_file_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--learner", ELSEWHERE, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_holds_no_certificate_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    assert main(["--learner", HERE, "--ca", str(tmp_path / "ca.pem")]) == 2
    assert "expected certificates in PEM" in capsys.readouterr().err


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
