"""``policy-server --check``, as a real process beside real ports, files and learners."""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from common.errors import CheckpointError, ConfigError, CrossborderError, LearnerUnreachableError
from crossborder.certificates.authority import make_files
from crossborder.serving.checking import CHECKS, ServingHost
from crossborder.serving.serving_config import ServingConfig
from tests.conftest import Command, MakeConfig, free_port
from tests.crossborder.serving.test_policy_server import ACROBOT, save
from tests.e2e.test_counting import train_in_thread

Start = Callable[..., Command]
Check = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def check(start: Start) -> Check:
    """Runs the check with some words; its exit code, and the lines that it printed."""

    def _check(*words: str) -> tuple[int, list[str]]:
        command = start("policy-server", "--check", "--listen", "127.0.0.1:0", *words)
        return command.wait(), command.output().splitlines()

    return _check


def results(lines: Sequence[str], result: str) -> list[str]:
    """The names of the checks with this result."""
    return [re.split("  +", line)[1] for line in lines if line.startswith(result)]


@pytest.mark.slow
def test_every_check_passes_where_a_service_would_work_and_nothing_stays_behind(tmp_path: Path, check: Check) -> None:
    save(tmp_path / "easy")
    save(tmp_path / "hard", ACROBOT)
    runs = [f"--run={name}={tmp_path / name}" for name in ("easy", "hard")]
    code, lines = check(*runs, "--websocket", "127.0.0.1:0", "--record", str(tmp_path / "episodes"))
    assert (code, results(lines, "pass")) == (0, [one.name for one in CHECKS])
    policies = next(line for line in lines if line.startswith("pass  policies"))
    assert "easy from " in policies
    assert "opt step 12: takes <f4 [4], gives <i8 [], in " in policies
    assert "takes <f4 [6]" in policies
    assert not (tmp_path / "episodes").exists()


@pytest.mark.slow
def test_each_fault_is_named_with_advice_and_the_checks_go_on(tmp_path: Path, check: Check) -> None:
    save(tmp_path / "run")
    (tmp_path / "run" / "best" / "model.safetensors").write_bytes(b"no weights")
    (tmp_path / "clients.tokens").write_text("a line of four words\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, lines = check(
            *(f"--run={tmp_path / 'run'}", f"--metrics=127.0.0.1:{port}"),
            *(f"--listen-tokens={tmp_path / 'clients.tokens'}", "--device=gpu", "--record=/proc/episodes"),
        )
    assert code == ConfigError.exit_code, "that of the first failure"
    assert results(lines, "FAIL") == ["device", "policies", "doors", "ports", "recording"]
    assert results(lines, "pass") == ["certificate"]
    text = "\n".join(lines)
    assert f"metrics: 127.0.0.1:{port}: cannot listen there" in text
    assert "found 5 words\n                   to do: crossborder-certs makes certificates, and a token for" in text
    assert "Traceback" not in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "error", "name"),
    [
        (["--run=RUN/best", "--listen=0.0.0.0:0"], ConfigError, "doors"),
        (["--run=RUN/final"], CheckpointError, "policies"),
    ],
)
def test_the_exit_code_is_that_of_the_fault(
    tmp_path: Path, check: Check, words: list[str], error: type[CrossborderError], name: str
) -> None:
    save(tmp_path)
    shutil.copytree(tmp_path / "best", tmp_path / "final")
    (tmp_path / "final" / "model.safetensors").unlink()
    code, lines = check(*(word.replace("RUN", str(tmp_path)) for word in words))
    assert (code, results(lines, "FAIL")) == (error.exit_code, [name])


@pytest.mark.slow
def test_certificate_and_tokens_are_described(tmp_path: Path, check: Check) -> None:
    save(tmp_path / "run")
    make_files(tmp_path, ["gpu-host"], 1, renew=False)
    (tmp_path / "clients.tokens").write_text(f"unity {'a' * 20}\nbrowser {'b' * 20}\n")
    words = [f"--listen-certificate={tmp_path / 'server.pem'}", f"--listen-key={tmp_path / 'server.key'}"]
    code, lines = check(f"--run={tmp_path / 'run'}", *words, f"--listen-tokens={tmp_path / 'clients.tokens'}")
    assert code == 0
    assert any(re.match("pass  certificate +for gpu-host, .* days from now", line) for line in lines)
    assert any(re.match("pass  doors +127.0.0.1:0 for browser, unity$", line) for line in lines)
    assert "a" * 20 not in "\n".join(lines)


@pytest.mark.slow
def test_a_certificate_that_is_missing_is_named_and_the_checks_go_on(tmp_path: Path, check: Check) -> None:
    save(tmp_path / "run")
    (tmp_path / "host.key").touch()
    words = [f"--listen-certificate={tmp_path / 'missing.pem'}", f"--listen-key={tmp_path / 'host.key'}"]
    code, lines = check(f"--run={tmp_path / 'run'}", *words)
    assert (code, results(lines, "FAIL")) == (ConfigError.exit_code, ["doors", "certificate"])
    assert results(lines, "pass")[-1] == "recording"
    assert "Traceback" not in "\n".join(lines)


def test_a_place_of_recording_behind_a_closed_directory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exists, closed = Path.exists, tmp_path / "others" / "episodes"

    def look(path: Path, **options: bool) -> bool:
        if path == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return exists(path, **options)

    monkeypatch.setattr(Path, "exists", look)
    with pytest.raises(ConfigError, match=r"record: expected a directory in which this user can write, .*Permission"):
        ServingHost(ServingConfig(record=closed), {}, []).recording()


@pytest.mark.slow
def test_with_a_learner_its_checks_follow(make_config: MakeConfig, check: Check) -> None:
    config = make_config(agent={"target": "tests.parts:CheckingLaneAgent"})
    with train_in_thread(config, local_actors=0) as (server, _):
        code, lines = check("--learner", server.ingest.address)
    assert code == 0, "\n".join(lines)
    assert results(lines, "pass")[len(CHECKS) :][:5] == ["name", "port", "TLS", "answer", "token"]
    code, lines = check("--learner", f"127.0.0.1:{free_port()}")
    assert (code, results(lines, "FAIL")) == (LearnerUnreachableError.exit_code, ["port"])
