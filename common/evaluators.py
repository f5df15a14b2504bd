"""Opens the evaluator of a run, and the environments that only the evaluator steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial

from common.config.actor_config import ActorConfig
from common.errors import ConfigError
from common.evaluation import build_evaluator
from common.interfaces import EnvSpec, Evaluator
from common.lanes.building import build_env, spec_of
from common.lanes.lanes import AnyEnv, close_env
from common.lanes.pace import Pace, PacedEnv
from common.lanes.safe_stop import build_safe_stop, check_safe_stop
from common.lanes.watched_envs import Watch
from common.plugins.part_config import EnvConfig


def open_evaluator(
    config: ActorConfig,
    training: EnvSpec | None,
    watch: Watch,
    stack: ExitStack,
    film: Callable[[EnvConfig], AbstractContextManager[AnyEnv]] | None = None,
) -> Evaluator:
    """Build the evaluator of a run and its first environment.

    Args:
        config: names the evaluator and the environment.
        training: the spaces of one lane as they are recorded; None: they are not compared.
        watch: watches every environment that the evaluator steps.
        stack: stops the environments safely and closes them.
        film: opens the one environment that is filmed while it plays all episodes; None: nothing is filmed.

    Raises:
        CrossborderError: the evaluator or its environment cannot be built, or this environment has other spaces than
            the environment of training.
    """
    env_config = config.env.for_evaluation()
    stop_safely = build_safe_stop(env_config)
    rate_hz = env_config.rate_hz if env_config.eval_at_rate else None

    def make_env() -> AnyEnv:
        if film is None:
            env = build_eval_env(config.env, training)
            stack.callback(close_env, env)
        else:
            env = stack.enter_context(film(env_config))
        check_safe_stop(env_config, env.action_space, env)
        stack.enter_context(watch.stopping(partial(stop_safely, env)))
        watched = watch.over(env)
        return watched if rate_hz is None else PacedEnv(watched, Pace(rate_hz, watch.abandoned))

    make_more = make_env if rate_hz is None and film is None else None  # A robot exists once.
    return build_evaluator(make_env(), config.evaluator, env_config, make_more)


def build_eval_env(config: EnvConfig, training: EnvSpec | None) -> AnyEnv:
    """Build an environment of evaluations, which must have the spaces of training.

    Args:
        config: of the environment in training.
        training: the spaces of one lane as they are recorded; None: they are not compared.

    Raises:
        PluginError: the environment cannot be built.
        ConfigError: its observation or action space differs from the space of training.
    """
    env = build_env(config.for_evaluation())
    found = spec_of(env, float64=config.float64)
    if training is not None and found != training:
        close_env(env)
        raise ConfigError(f"env.eval_params: expected the spaces of training, {training}, found {found}")
    return env
