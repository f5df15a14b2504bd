"""Opens the evaluator of a run, and the environments that only the evaluator steps."""

from __future__ import annotations

from contextlib import ExitStack

from common.config.actor_config import ActorConfig
from common.errors import ConfigError
from common.evaluation import build_evaluator
from common.interfaces import EnvSpec, Evaluator
from common.lanes.building import build_env, spec_of
from common.lanes.lanes import AnyEnv
from common.lanes.watched_envs import Watch
from common.plugins.part_config import EnvConfig


def open_evaluator(config: ActorConfig, training: EnvSpec, watch: Watch, stack: ExitStack) -> Evaluator:
    """Build the evaluator of a run and its first environment.

    Args:
        config: names the evaluator and the environment.
        training: the spaces of one lane as they are recorded.
        watch: over every environment that the evaluator steps.
        stack: closes the environments.

    Raises:
        CrossborderError: one of them cannot be built, or the environment has other spaces than that of training.
    """

    def make_env() -> AnyEnv:
        env = build_eval_env(config.env, training)
        stack.callback(env.close)
        return watch.over(env)

    return build_evaluator(make_env(), config.evaluator, config.env.for_evaluation(), make_env)


def build_eval_env(config: EnvConfig, training: EnvSpec) -> AnyEnv:
    """Build an environment of evaluations, which must have the spaces of training.

    Args:
        config: of the environment in training.
        training: the spaces of one lane as they are recorded.

    Raises:
        PluginError: it cannot be built.
        ConfigError: its observation or action space differs from that of training.
    """
    env = build_env(config.for_evaluation())
    found = spec_of(env, float64=config.float64)
    if found != training:
        env.close()
        raise ConfigError(f"env.eval_params: expected the spaces of training, {training}, found {found}")
    return env
