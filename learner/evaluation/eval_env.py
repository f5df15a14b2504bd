"""The environment of evaluations."""

from __future__ import annotations

from common.envs import Env, build_env, spec_of
from common.errors import ConfigError
from common.plugins.part_config import EnvConfig


def build_eval_env(config: EnvConfig, training: Env) -> Env:
    """Build the environment of evaluations beside the one of training.

    Raises:
        PluginError: it cannot be built.
        ConfigError: its spaces are others than those of training.
    """
    env = build_env(config.for_evaluation())
    expected, found = spec_of(training), spec_of(env)
    if found != expected:
        env.close()
        raise ConfigError(f"env.eval_params: expected the spaces of training, {expected}, found {found}")
    return env
