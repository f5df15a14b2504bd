from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from common.process.child import Child
from learner.commands.standby import CHILD
from tests.conftest import PATIENCE, ROOT, wait_for


def test_it_is_the_command_with_the_output_that_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        fds = (out.fileno(), err.fileno())
        words = ["--config", str(ROOT / "configs" / "cartpole.yaml"), "--show-config", "--set", "seed=3"]
        boot: dict[str, Any] = {"words": words, "output_fds": fds}
        child = Child("learner", CHILD, boot, pass_fds=fds)
        assert child.wait(PATIENCE) == 0, (tmp_path / "err").read_text()
        child.end(0)
    assert "\nseed: 3\n" in (tmp_path / "out").read_text()
    assert (tmp_path / "err").read_text() == ""


def test_a_learner_whose_keeper_ends_without_a_word_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert Child("learner", CHILD, None).end(PATIENCE) == 0


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    (caught,) = re.findall(r"^SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_ctrl_c_before_the_command_has_begun_ends_it_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    child = Child("learner", CHILD, None)
    wait_for(lambda: not catches(child.pid, signal.SIGINT), "it waits for its boot line")
    child.signal(signal.SIGINT)
    assert child.wait(PATIENCE) == -signal.SIGINT
    child.end(0)
    assert "Traceback" not in caplog.text
