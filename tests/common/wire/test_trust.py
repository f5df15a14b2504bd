from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from common.errors import ConfigError
from common.wire.channel import watch_credentials
from common.wire.trust import Trust
from tests.conftest import ROOT, Command


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
    worker = start("actor-worker", "--learner", "gpu-host.invalid:1", "--insecure", "--ca", "ca.pem")
    assert worker.wait() == 2
    assert "actor-worker: --insecure: expected none of ca beside it" in worker.output()


@pytest.mark.parametrize(
    ("host", "allow", "anything"),
    [
        ("127.0.0.1", (), True),
        ("localhost", ("mine",), False),
        ("gpu-host", (), False),
        ("gpu-host", ("mine",), False),
        ("gpu-host", ("mine", "any"), True),
    ],
)
def test_only_a_learner_on_this_host_may_name_anything_unasked(
    host: str, allow: tuple[str, ...], *, anything: bool
) -> None:
    assert Trust(allow=allow).allows_anything(host) is anything
