from __future__ import annotations

import re
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from common.cores import write_cores
from common.errors import ConfigError, RunDirectoryError
from common.system import usable_cores
from crossborder.certificates.authority import make_authority, sign
from crossborder.inspecting.crossborder_doctor import CHECKS, describe_certificate, main
from tests.disks import Disk

WriteConfig = Callable[..., Path]


@pytest.fixture
def examine(write_config: WriteConfig, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, list[str]]]:
    """Runs the command for a counting run with some settings; its exit code, and what it printed."""

    def _examine(*overrides: str) -> tuple[int, list[str]]:
        words = [word for each in overrides for word in ("--set", each)]
        code = main(["--config", str(write_config()), *words])
        return code, capsys.readouterr().out.splitlines()

    return _examine


def failed(lines: Sequence[str]) -> list[str]:
    """The names of the checks that failed."""
    return [re.split("  +", line)[1] for line in lines if line.startswith("FAIL")]


def test_every_check_passes_on_a_host_on_which_a_learner_works(
    examine: Callable[..., tuple[int, list[str]]], tmp_path: Path
) -> None:
    code, lines = examine()
    assert (code, [re.split("  +", line)[:2] for line in lines]) == (0, [["pass", check.name] for check in CHECKS])
    assert "µs by torch, " in lines[3], "how long a product of matrices takes"
    assert "tests.parts:CountingEnv and tests.parts:CheckingAgent make rows of" in lines[4]
    assert [path.name for path in tmp_path.iterdir()] == ["counting.yaml"], "nothing is left behind"


def test_cores_of_the_trainer_are_counted_and_cores_that_this_host_lacks_are_found(
    examine: Callable[..., tuple[int, list[str]]],
) -> None:
    usable = usable_cores()
    _, lines = examine(f"trainer.cores={usable[0]}")
    assert lines[1] == f"pass  cores         1 for trainer and ingest, {len(usable) - 1} for local actors"
    code, lines = examine("trainer.cores=9999")
    assert (code, failed(lines)) == (ConfigError.exit_code, ["cores"])
    assert lines[1].endswith(f"that this process may use ({write_cores(usable)}), found 9999")


def test_a_port_that_is_taken_is_named_and_the_checks_go_on(examine: Callable[..., tuple[int, list[str]]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, lines = examine(f"metrics.listen=127.0.0.1:{port}")
    assert (code, failed(lines)) == (5, ["ports"])
    assert any(f"metrics.listen: 127.0.0.1:{port}: cannot listen there" in line for line in lines)
    assert lines[-1].startswith("pass  clock")


def test_a_replay_that_is_larger_than_the_disk_is_found_before_it_is_allocated(
    examine: Callable[..., tuple[int, list[str]]], disk: Disk
) -> None:
    code, lines = examine("replay.capacity=10000000", f"run_dir={disk.path}/run")
    assert failed(lines) == ["disk"]
    assert any("expected room for the replay, but" in line for line in lines)
    assert code == 4


def test_a_run_directory_behind_a_closed_one_is_named_and_the_checks_go_on(
    examine: Callable[..., tuple[int, list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_dir, closed = Path.is_dir, tmp_path / "others" / "run"

    def look(path: Path, **options: bool) -> bool:
        if path == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return is_dir(path, **options)

    monkeypatch.setattr(Path, "is_dir", look)
    code, lines = examine(f"run_dir={closed}")
    assert (code, failed(lines)) == (RunDirectoryError.exit_code, ["disk", "mapped files"])
    assert any(f"{closed}: cannot be reached: Permission denied" in line for line in lines)
    assert lines[-1].startswith("pass  clock")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named(examine: Callable[..., tuple[int, list[str]]]) -> None:
    _, lines = examine("trainer.device=cuda")
    assert "device" in failed(lines)
    assert any("expected one of 0 GPUs that torch finds here, found cuda" in line for line in lines)


def test_a_device_that_torch_does_not_know_fails_its_check_and_the_others_go_on(
    examine: Callable[..., tuple[int, list[str]]],
) -> None:
    code, lines = examine("trainer.device=gpu0")
    assert (code, failed(lines)) == (2, ["device", "parts"])
    assert lines[-1].startswith("pass  clock")
    assert any(re.fullmatch(r"pass  disk .* GB free at \S+; the size of the replay is unknown", line) for line in lines)
    assert any(
        re.fullmatch(r"pass  memory .* GB are unused; the size of the replay is unknown", line) for line in lines
    )


def test_a_certificate_is_shown_with_its_names_and_its_last_day(tmp_path: Path) -> None:
    certificate, key = write_pair(tmp_path, days=30)
    assert re.search(r"for gpu-host; until \d{4}-\d\d-\d\d, (29|30) days", describe_certificate(certificate, key))


def test_a_certificate_that_has_expired_is_refused(tmp_path: Path) -> None:
    certificate, key = write_pair(tmp_path, days=-1)
    with pytest.raises(ConfigError, match="expired"):
        describe_certificate(certificate, key)


def write_pair(directory: Path, days: int) -> tuple[Path, Path]:
    """Files with a server's certificate of a new authority, and its key."""
    made = sign(make_authority(), "server", ["gpu-host"], days)
    certificate, key = directory / "server.pem", directory / "server.key"
    certificate.write_bytes(made.certificate_pem)
    key.write_bytes(made.key_pem)
    return certificate, key
