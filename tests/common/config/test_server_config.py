from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.config.server_config import ServerConfig
from common.errors import ConfigError
from common.settings import validate
from crossborder.certificates.authority import make_files


def check(**settings: Any) -> None:
    """Read the ``server`` section of a configuration and check it."""
    validate(ServerConfig, settings).check()


@pytest.mark.parametrize("listen", ["0.0.0.0:50051", "[::]:0", "192.168.1.5:1", "gpu-host:50051"])
def test_listening_beyond_loopback_needs_tls_and_tokens_or_insecure(listen: str) -> None:
    both = r"expected server\.tls and server\.actor_token_file too"
    with pytest.raises(ConfigError, match=rf"server\.listen: .* reachable from other hosts; {both} .* or --insecure"):
        check(listen=listen)
    check(listen=listen, insecure=True)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.1.2.3:1", "[::1]:0", "localhost:50051"])
def test_listening_on_loopback_needs_neither(listen: str) -> None:
    check(listen=listen)


@pytest.fixture
def secured(tmp_path: Path) -> dict[str, Any]:
    """The server section of a run that other hosts may reach."""
    make_files(tmp_path, ["gpu-host"], 1, renew=False)
    return {
        "listen": "0.0.0.0:0",
        "tls": {"certificate": tmp_path / "server.pem", "key": tmp_path / "server.key"},
        "actor_token_file": tmp_path / "actor.token",
    }


def test_tls_and_tokens_let_a_learner_listen_anywhere(secured: dict[str, Any]) -> None:
    check(**secured)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"insecure": True}, r"--insecure\): expected neither server\.tls nor tokens beside it"),
        ({"tls": None}, r"server\.tls: .* tokens, which are sent over TLS only"),
        ({"tls": None, "insecure": True}, r"--insecure\): expected neither"),
        ({"actor_token_file": None}, r"server\.listen: .* expected server\.actor_token_file too"),
        (
            {"actor_token_file": "no.token"},
            r"^server\.actor_token_file: token file no\.token: cannot be read: No such file",
        ),
        ({"tls": {"certificate": "no.pem", "key": "no.key"}}, r"^server\.tls: private key no\.key: cannot be read"),
    ],
)
def test_settings_that_would_let_in_somebody_by_mistake_are_refused(
    secured: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check(**{**secured, **changes})


def test_admins_are_answered_by_their_tokens_or_without_any_tokens_on_loopback(secured: dict[str, Any]) -> None:
    token = secured["actor_token_file"]
    assert ServerConfig(**secured, admin_token_file=token).answers_admins
    assert ServerConfig().answers_admins
    refused: list[dict[str, Any]] = [secured, {"actor_token_file": token}, {"insecure": True}, {"listen": "0.0.0.0:0"}]
    assert not any(ServerConfig(**settings).answers_admins for settings in refused)


@pytest.mark.parametrize("admin", [False, True])
def test_a_run_that_says_whether_admins_are_answered_is_read(admin: bool) -> None:
    assert ServerConfig.model_validate({"admin": admin}) == ServerConfig()


def test_admins_tokens_alone_would_lock_actors_out(secured: dict[str, Any]) -> None:
    swapped = {**secured, "admin_token_file": secured["actor_token_file"], "actor_token_file": None}
    with pytest.raises(ConfigError, match=r"server\.actor_token_file: expected tokens of actors beside"):
        check(**swapped)


def test_a_certificate_with_the_key_of_another_is_refused(secured: dict[str, Any], tmp_path: Path) -> None:
    secured["tls"]["key"] = tmp_path / "actor.key"
    with pytest.raises(ConfigError, match=r"server\.pem: expected PEM with its unencrypted key in .*actor\.key"):
        check(**secured)


@pytest.mark.parametrize("value", [0, -1.0, True, "keep", None, float("inf"), []])
def test_a_column_has_a_number_or_a_word_for_its_unusual_values(value: object) -> None:
    with pytest.raises(
        ConfigError, match=r"^unusual_values\.reward: expected count, refuse or a number greater than 0"
    ):
        check(unusual_values={"reward": value})
    check(unusual_values={"reward": 10, "obs": "refuse", "action": "count"})
