"""Checks a sweep before anything is made: its first settings, the arguments of its command, the record of its score."""

from __future__ import annotations

import importlib

from common.config.nested import assign
from common.config.run_config import RunConfig
from common.data import EVAL_KEYS, RUN_KEYS
from common.errors import ConfigError
from common.hints import nearest
from common.plugins.shipped import SHIPPED
from common.process.command import raising_usage
from common.settings import validate
from crossborder.sweeps.sweep_child import MODULES
from crossborder.sweeps.sweep_config import SweepConfig, first_config
from learner.commands.training_command import require_consistent


def check_sweep(sweep: SweepConfig) -> None:
    """Check everything that would let each trial fail.

    Raises:
        CrossborderError: a setting is wrong, or its part cannot be loaded.
    """
    config = _with_arguments(sweep)
    config.check()
    if sweep.score.record not in RUN_KEYS | EVAL_KEYS:
        _require_recorded(sweep.score.record, config)


def _with_arguments(sweep: SweepConfig) -> RunConfig:
    """The first configuration as a run gets it, with the values that ``arguments`` set.

    Raises:
        ConfigError: the command does not take the arguments, or would end without training.
    """
    words, parser = " ".join(sweep.arguments), importlib.import_module(MODULES[sweep.command]).parser()
    expected = f"arguments: expected options with which {sweep.command} trains, found {words}"
    with raising_usage(expected):
        found = parser.parse_args([*sweep.arguments, "--config", str(sweep.config), "--resume"])
        require_consistent(parser, found)
    if found.check or found.show_config:
        raise ConfigError(expected)
    values = first_config(sweep).model_dump(mode="json")
    for each in found.overrides:
        assign(values, each)
    return validate(RunConfig, values)


def _require_recorded(key: str, config: RunConfig) -> None:
    """Check that runs record this key; an evaluator of one's own may record any.

    Raises:
        CrossborderError: they do not, or a part cannot be built.
    """
    from learner.loop.learner_parts import build_learner_parts  # noqa: PLC0415 - imports torch, which takes seconds
    from learner.loop.trial import try_opt  # noqa: PLC0415 - imports torch

    of_agent = try_opt(config, build_learner_parts(config), quick=True)
    known = RUN_KEYS | EVAL_KEYS | of_agent
    if of_agent and key not in known and config.evaluator.target in SHIPPED["evaluator"].values():
        raise ConfigError(f"score.record: expected a column of metrics.csv, found '{key}'{nearest(key, known)}")
