from __future__ import annotations

import logging
import logging.config
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from common.errors import FaultError, PluginError
from common.lanes.stacking import Stacker
from common.plugins.part_config import PluginConfig
from common.plugins.part_loading import load_module, load_part


def test_a_callable_is_found_by_module_and_name() -> None:
    assert load_part("common.lanes.stacking:Stacker") is Stacker


@pytest.mark.parametrize("target", ["", "common.lanes.stacking", "common.lanes.stacking:", ":Stacker"])
def test_a_target_without_module_or_attribute_is_refused_with_an_example(target: str) -> None:
    with pytest.raises(
        PluginError, match=r"expected module:attr, such as my_parts:MyAgent, or the short name of .* DQN$"
    ):
        load_part(target)


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("dqn", "(did you mean 'DQN'?)"),
        ("Sequence", "(did you mean 'Sequences'?)"),
        ("SAC", "(here, write common.agents.sac:SAC)"),
    ],
)
def test_a_wrong_short_name_is_answered_with_the_nearest(target: str, hint: str) -> None:
    with pytest.raises(PluginError, match=re.escape(f"'{target}': expected module:attr") + ".*" + re.escape(hint)):
        load_part(target)


def test_a_module_that_cannot_be_imported_is_named_with_the_reason() -> None:
    with pytest.raises(PluginError, match=r"cannot import module 'no\.such': No module named 'no'"):
        load_part("no.such:Thing")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise RuntimeError('no licence\\nnor a key')", "RuntimeError: no licence"),
        ("def f(:", "SyntaxError: invalid syntax (failing_part.py, line 1)"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
    ],
)
def test_a_module_whose_code_fails_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, reason: str
) -> None:
    (tmp_path / "failing_part.py").write_text(code + "\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FaultError) as found:
        PluginConfig(target="failing_part:Part").check("replay.view", frozenset())
    place = "replay.view.target: 'failing_part:Part': cannot import module 'failing_part'"
    assert str(found.value) == f"{place}: {reason}"
    assert reason.startswith(type(found.value.__cause__).__name__)


def test_a_missing_attribute_names_the_nearest() -> None:
    with pytest.raises(PluginError, match=r"has no callable 'Stackr' \(did you mean 'Stacker'\?\)"):
        load_part("common.lanes.stacking:Stackr")


def test_something_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(PluginError, match="has no callable 'PROTOCOL_VERSION'"):
        load_part("common.wire.rpc:PROTOCOL_VERSION")


def test_a_module_in_the_current_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_part.py").write_text("def make():\n    return 42\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    assert load_part("my_own_part:make")() == 42


def test_in_a_removed_directory_parts_are_found_and_a_missing_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook whose directory was deleted."""
    monkeypatch.chdir(tmp_path)  # The test ends where it began.
    (tmp_path / "removed").mkdir()
    os.chdir("removed")
    (tmp_path / "removed").rmdir()
    assert load_part("common.wire.rpc:typed_error").__name__ == "typed_error"
    for target in ("my_missing_part:make", "common.missing:make"):
        with pytest.raises(PluginError, match=f"'{target}': cannot import module .*No module named"):
            load_part(target)


def test_a_relative_module_is_refused() -> None:
    with pytest.raises(PluginError, match="expected module:attr"):
        load_part(".foo:bar")


@pytest.mark.parametrize(
    ("code", "target"),
    [
        ("from common import own_thing", "my_clashing_part:make"),
        ("import common.own_module", "my_clashing_part:make"),
        ("", "common.own_module:make"),
    ],
)
def test_a_package_with_the_name_of_one_of_ours_is_told_to_be_renamed(
    code: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_clashing_part.py").write_text(code)
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "own_module.py").touch()
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    hint = f"'common' is also a package of crossborder, which hides {tmp_path / 'common'}: rename your package"
    with pytest.raises(PluginError, match=hint):
        load_part(target)


def test_a_misspelt_module_of_ours_is_not_called_a_clash() -> None:
    with pytest.raises(PluginError, match=r"No module named 'common\.agents\.dqm'$"):
        load_part("common.agents.dqm:DQN")


NAMES = (
    "the working directory",
    "torch's default dtype",
    "torch's default device",
    "torch's gradients",
    "numpy's error handling",
    "SIGINT",
    "SIGTERM",
)


def take_everything() -> None:
    """Changes all globals of this process that a simulator may change."""
    os.chdir("/")
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_grad_enabled(False)
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
        assert (torch.empty(0).device, torch.is_grad_enabled()) == (torch.device("cpu"), True)
        assert before[3:] == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
        assert [name for name in NAMES if name not in caplog.text] == []
    finally:
        os.chdir(before[0])
        torch.set_default_dtype(before[1])
        torch.set_default_device(None)
        torch.set_grad_enabled(True)
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


def configure_its_logger() -> None:
    """Turns off all loggers that exist, as ``dictConfig`` does unless it is told otherwise."""
    logging.config.dictConfig({"version": 1, "loggers": {"my_simulator": {"level": "INFO"}}})


def configure_the_root() -> None:
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": False, "root": {"level": "CRITICAL"}})


def turn_logging_off() -> None:
    logging.disable(logging.CRITICAL)


@pytest.fixture
def log_as_it_was() -> Iterator[None]:
    """Puts the log of the tests back, also if the code under test has not."""
    root = logging.getLogger()
    level, handlers = root.level, [*root.handlers]
    loggers = [each for each in root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    disabled = [each.disabled for each in loggers]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
    logging.disable(logging.NOTSET)
    for each, was_disabled in zip(loggers, disabled, strict=True):
        each.disabled = was_disabled


@pytest.mark.usefixtures("log_as_it_was")
@pytest.mark.parametrize("configure", [configure_its_logger, configure_the_root, turn_logging_off])
def test_a_part_that_sets_up_logging_does_not_silence_us(
    configure: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    log = logging.getLogger("common.lanes.lanes")
    PluginConfig(target=f"{__name__}:{configure.__name__}").build()
    log.warning("an environment is lost")
    assert f"{configure.__name__} changes the log: this is undone" in caplog.text
    assert "an environment is lost" in caplog.text


def add_a_handler() -> logging.Handler:
    logging.getLogger().addHandler(handler := logging.NullHandler())
    return handler


@pytest.mark.usefixtures("log_as_it_was")
def test_a_handler_that_a_part_adds_to_the_log_stays(caplog: pytest.LogCaptureFixture) -> None:
    handler = PluginConfig(target=f"{__name__}:add_a_handler").build()
    assert handler in logging.getLogger().handlers
    assert caplog.text == ""


class LeftOpen:
    """Leaves torch's inference mode open as long as it lives."""

    def __init__(self) -> None:
        self._mode = torch.inference_mode()
        self._mode.__enter__()


def test_a_part_that_leaves_the_inference_mode_open_lets_us_compute_gradients(
    caplog: pytest.LogCaptureFixture,
) -> None:
    part = PluginConfig(target=f"{__name__}:LeftOpen").build()
    weights = torch.ones(2, requires_grad=True)
    (gradient,) = torch.autograd.grad((2 * weights).sum(), weights)
    assert gradient.tolist() == [2, 2]
    assert "changes torch's gradients from on to inference mode: this is undone" in caplog.text
    del part  # torch leaves its mode too; gradients stay on.
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()
