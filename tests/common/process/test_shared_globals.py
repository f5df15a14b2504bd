from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from common.plugins.part_config import PluginConfig
from common.plugins.part_loading import load_module

NAMES = ("the working directory", "torch's default dtype", "numpy's error handling", "SIGINT", "SIGTERM")


def take_everything() -> None:
    """Changes all globals of this process that a simulator may change."""
    os.chdir("/")
    torch.set_default_dtype(torch.float64)
    np.seterr(all="raise")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)


def take_everything_and_fail() -> None:
    take_everything()
    raise RuntimeError("no simulator")


@contextmanager
def unchanged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Checks at its end that all globals are as before, and that the log names each of them."""
    before: tuple[Any, ...]
    before = Path.cwd(), torch.get_default_dtype(), np.geterr(), *map(signal.getsignal, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
        assert before[:3] == (Path.cwd(), torch.get_default_dtype(), np.geterr())
        assert before[3:] == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
        assert [name for name in NAMES if name not in caplog.text] == []
    finally:
        os.chdir(before[0])
        torch.set_default_dtype(before[1])
        np.seterr(**before[2])
        signal.signal(signal.SIGINT, before[3])
        signal.signal(signal.SIGTERM, before[4])


def test_a_part_that_is_built_changes_no_globals_for_us(caplog: pytest.LogCaptureFixture) -> None:
    with unchanged(caplog):
        PluginConfig(target=f"{__name__}:take_everything").build()


def test_a_part_that_cannot_be_built_changes_none_either(caplog: pytest.LogCaptureFixture) -> None:
    with unchanged(caplog), pytest.raises(RuntimeError):
        PluginConfig(target=f"{__name__}:take_everything_and_fail").build()


def test_a_module_that_is_imported_changes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "greedy_simulator.py").write_text(f"from {__name__} import take_everything\ntake_everything()\n")
    monkeypatch.syspath_prepend(tmp_path)
    with unchanged(caplog):
        load_module("greedy_simulator")
