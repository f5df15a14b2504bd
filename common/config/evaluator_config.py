"""The evaluator's part of the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from common.plugins.part_config import PluginConfig

if TYPE_CHECKING:  # Ingest reads configurations, and never imports gymnasium.
    from common.lanes.building import Env


class EvaluatorConfig(PluginConfig):
    """Greedy episodes in environments that only evaluations step."""

    target: str = Field(
        "common.evaluation:DefaultEvaluator",
        description="The class that scores the agent, written as module:attr. It is called with env, config (this "
        "section) and params.",
    )
    params: dict[str, Any] = Field(default_factory=dict, description="Further keyword arguments for the target.")
    process: Literal["inline", "child", "actor"] = Field(
        "inline",
        description="Where evaluations run. inline: in the trainer, which waits for them, as in border; child: in a "
        "separate process on the CPU, while training goes on; actor: in an actor-worker --evaluate on another host.",
    )
    finish_seconds: PositiveFloat = Field(
        60.0,
        description="Seconds that the learner waits, when training ends, for an evaluation that still runs in the "
        "child or the actor.",
    )
    episodes: PositiveInt = Field(
        5, description="The number of episodes in one evaluation; the score is their mean return."
    )
    max_steps: PositiveInt = Field(
        100_000, description="The most steps of one episode; the evaluation cuts off a longer one."
    )
    max_envs: PositiveInt = Field(
        32, description="The most environments in which an evaluation plays at the same time."
    )
    seed: NonNegativeInt = Field(0, description="The seed of evaluations: episode i begins with reset(seed=seed + i).")


class EvaluatorArguments(TypedDict):
    """The arguments that the system provides to every evaluator, besides its ``params``."""

    env: Env
    config: EvaluatorConfig


EVALUATOR_OPTIONAL: Final = frozenset({"env_config", "make_env"})
"""Arguments for evaluators that have parameters of these names: the ``EnvConfig`` of evaluations, and a function that
makes one more environment."""
