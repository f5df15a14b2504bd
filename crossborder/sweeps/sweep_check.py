"""Checks before a sweep begins what would let each trial fail: settings, arguments, the record of the score."""

from __future__ import annotations

import importlib

from common.config.nested import assign
from common.config.run_config import RunConfig
from common.data import EVAL_KEYS, RUN_KEYS
from common.errors import ConfigError
from common.evaluation import build_eval_env
from common.hints import nearest
from common.lanes.lanes import close_env
from common.plugins.shipped import SHIPPED
from common.settings import validate
from crossborder.sweeps.sweep_child import MODULES
from crossborder.sweeps.sweep_config import SweepConfig, first_config
from learner.commands.training_command import require_consistent


def check_sweep(sweep: SweepConfig) -> None:
    """Check the first settings as a run gets them, and that it trains and records the score.

    Raises:
        CrossborderError: a setting is wrong, or its part cannot be loaded.
    """
    words, parser = " ".join(sweep.arguments), importlib.import_module(MODULES[sweep.command]).parser()
    expected = f"arguments: expected options with which {sweep.command} trains, found {words}"
    try:
        found = parser.parse_args([*sweep.arguments, "--config", str(sweep.config), "--resume"])
        require_consistent(parser, found)
    except SystemExit as error:  # The parser has printed the reason.
        raise ConfigError(expected) from error
    if found.check or found.show_config:
        raise ConfigError(expected)
    values = first_config(sweep).model_dump(mode="json")
    for each in found.overrides:
        assign(values, each)
    config, key = validate(RunConfig, values), sweep.score.record
    config.check()
    if config.storage.mirror is not None:
        raise ConfigError("arguments: expected no storage.mirror, found one: each run needs a mirror of its own")
    if config.env.spaces is None:
        close_env(build_eval_env(config.env, None))  # A package that it needs may be missing.
    # An evaluator of one's own may record any key.
    if key not in RUN_KEYS | EVAL_KEYS and config.evaluator.target in SHIPPED["evaluator"].values():
        _require_key_of_agent(key, config)


def _require_key_of_agent(key: str, config: RunConfig) -> None:
    from learner.loop.learner_parts import build_learner_parts  # noqa: PLC0415 - imports torch, which takes seconds
    from learner.loop.trial import try_opt  # noqa: PLC0415 - imports torch

    known = try_opt(config, build_learner_parts(config), quick=True)
    if known and key not in known:  # Of an agent that could not learn from made-up rows, no key is known.
        hint = nearest(key, known | RUN_KEYS | EVAL_KEYS)
        raise ConfigError(f"score.record: expected a column of metrics.csv, found '{key}'{hint}")
