from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.config.server_config import ServerConfig
from common.errors import ConfigError
from common.settings import validate
from common.wire.tokens import CLIENT_VARIABLE
from crossborder.certificates.authority import make_files
from crossborder.serving.serving_config import ServingConfig
from learner.ingest.server_options import server_options


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    make_files(tmp_path, ["gpu-host"], 1, renew=False)
    tls = {"certificate": tmp_path / "server.pem", "key": tmp_path / "server.key"}
    return {"tls": tls, "token_file": tmp_path / "actor.token"}


def test_a_service_beyond_this_host_needs_certificates_and_tokens(files: dict[str, Any]) -> None:
    for settings, missing in (({}, "tls and token_file"), ({"tls": files["tls"]}, "token_file")):
        with pytest.raises(ConfigError, match=f"is reachable from other hosts; expected {missing} too"):
            ServingConfig(listen="0.0.0.0:50060", **settings).check()
    ServingConfig(listen="0.0.0.0:50060", **files).check()
    ServingConfig(listen="0.0.0.0:50060", insecure=True).check()
    ServingConfig(listen="127.0.0.1:50060").check()


def test_settings_that_contradict_each_other_are_refused(files: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected a certificate and key beside tokens"):
        ServingConfig(token_file=files["token_file"]).check()
    with pytest.raises(ConfigError, match=r"insecure .--listen-insecure.: expected neither tls nor tokens"):
        ServingConfig(insecure=True, **files).check()


def test_tokens_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch, files: dict[str, Any]) -> None:
    monkeypatch.setenv(f"{CLIENT_VARIABLE}_FILE", str(files["token_file"]))
    ServingConfig(listen="0.0.0.0:50060", tls=files["tls"]).check()


def test_connections_without_a_call_end_as_a_learners_do_however_long_a_session_may_be_silent() -> None:
    options, learners = (dict(server_options(one)) for one in (ServingConfig().as_server(), ServerConfig()))
    assert options["grpc.max_connection_idle_ms"] == learners["grpc.max_connection_idle_ms"]


@pytest.mark.parametrize("seed", [-1, 1 << 63])
def test_a_seed_that_no_environment_or_message_takes_is_refused(seed: int) -> None:
    with pytest.raises(ConfigError, match="seed: "):
        validate(ServingConfig, {"seed": seed})


def test_doors_and_metrics_need_ports_of_their_own() -> None:
    with pytest.raises(ConfigError, match=r"listen, websocket: expected another port for each, found 127\.0\.0\.1:7"):
        ServingConfig(listen="127.0.0.1:7", websocket="127.0.0.1:7").check()
    with pytest.raises(ConfigError, match="listen, metrics: expected another port for each"):
        ServingConfig(listen="127.0.0.1:7", metrics="127.0.0.1:7").check()
    ServingConfig(listen="127.0.0.1:0", websocket="127.0.0.1:0", metrics="127.0.0.1:0").check()
    ServingConfig(listen="127.0.0.1:7", metrics="[::1]:7").check()
