from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from common.config.run_config import dump_config, load_config
from common.process.child import Child
from learner.commands import standby_child
from learner.commands.standby import CHILD
from tests.conftest import PATIENCE, ROOT


def test_it_is_the_command_with_the_configuration_and_the_output_that_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        fds = (out.fileno(), err.fileno())
        config = dump_config(load_config(ROOT / "configs" / "cartpole.yaml", ["seed=3"]))
        words = ["--config", str(tmp_path / "gone.yaml"), "--show-config"]
        boot: dict[str, Any] = {"words": words, "config": config, "output_fds": fds}
        child = Child("learner", CHILD, boot, pass_fds=fds)
        assert child.wait(PATIENCE) == 0, (tmp_path / "err").read_text()
        child.end(0)
    assert "\nseed: 3\n" in (tmp_path / "out").read_text()
    assert (tmp_path / "err").read_text() == ""


def test_a_learner_whose_keeper_ends_without_a_word_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert Child("learner", CHILD, None).end(PATIENCE) == 0


def test_ctrl_c_before_the_command_has_begun_ends_it_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    handling = list[object]()

    def end_without_boot() -> NoReturn:
        handling.append(signal.getsignal(signal.SIGINT))
        sys.exit(0)

    monkeypatch.setattr(standby_child, "read_boot", end_without_boot)
    ours = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit):
            standby_child.main()
    finally:
        signal.signal(signal.SIGINT, ours)
    assert handling == [signal.SIG_DFL], "Python's own handler would raise KeyboardInterrupt"
