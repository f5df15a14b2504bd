"""The part of the configuration that the learner sends to the actors in its answer to ``Join``, and the evaluator's."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Self, TypedDict

from pydantic import Field, PositiveInt, model_validator

from common.depth import ANY_NUMBER, parse_json
from common.errors import ConfigError
from common.plugins.part_config import EnvConfig, PluginConfig
from common.plugins.shipped import write_out
from common.settings import Seconds, Settings, unknown_before, validate

if TYPE_CHECKING:  # Ingest reads configurations, and never imports gymnasium.
    from common.lanes.building import Env


class EvaluatorConfig(PluginConfig):
    """Greedy episodes in environments that only evaluations step."""

    GONE: ClassVar = {"max_envs": 32, "finish_seconds": 60.0, "seed": (0, 1000)}
    INSTEAD: ClassVar = {"seed": "remove it: evaluations begin with the seed 1000, and policy-eval has --seed"}

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
    episodes: PositiveInt = Field(
        5, description="The number of episodes in one evaluation; the score is their mean return."
    )
    max_steps: PositiveInt = Field(
        100_000, description="The most steps of one episode; the evaluation cuts off a longer one."
    )


class EvaluatorArguments(TypedDict):
    """The arguments that the system provides to every evaluator, besides its ``params``."""

    env: Env
    config: EvaluatorConfig


EVALUATOR_OPTIONAL: Final = frozenset({"env_config", "make_env", "seed"})
"""Arguments for evaluators that have parameters of these names: the ``EnvConfig`` of evaluations, a function that makes
one more environment, and the seed of the first episode."""


_TEXT_OR_INFINITY: Final = re.compile(r'"(?:[^"\\]|\\.)*"|-?Infinity')
_INFINITIES: Final = {"Infinity": math.inf, "-Infinity": -math.inf}
"""JSON has no infinite number, and some parsers refuse a number that is too large: so these are texts on the wire."""

MAX_ENVS_PER_ACTOR: Final = 1024
MAX_BATCH_ROWS: Final = 1 << 16
MAX_WINDOW: Final = 1 << 16
MAX_SPOOL_BYTES: Final = 16 << 30
"""The largest values of settings that a learner sends to actors. An actor allocates memory according to them, so a
learner that is not trusted must not choose them freely."""


class PushConfig(Settings):
    """How an actor hands over its rows."""

    GONE: ClassVar = {"spool_seconds": None}

    n_buffer: Annotated[int, Field(ge=1, le=MAX_BATCH_ROWS)] = Field(
        100, description="The number of rows in one batch (n_buffer in border)."
    )
    flush_seconds: Seconds | None = Field(
        0.5,
        description="Seconds after which a batch that is not full is sent, with the next row. null sends only full "
        "batches.",
    )
    window: Annotated[int, Field(ge=1, le=MAX_WINDOW)] = Field(
        4,
        description="The number of batches that an actor sends ahead of the learner's acknowledgements before it "
        "waits. Without replay.samples_per_insert, only batches older than 0.1 s count.",
    )
    spool_bytes: Annotated[int, Field(ge=1, le=MAX_SPOOL_BYTES)] = Field(
        64 << 20,
        description="The size of an actor's spool in bytes: it keeps batches until the learner has acknowledged "
        "them. While the learner is away, it compresses batches with pictures.",
    )
    when_full: Literal["block", "drop_oldest"] = Field(
        "block",
        description="How an actor behaves when its spool is full. block: it waits; drop_oldest: it goes on, and "
        "drops the oldest batches among those that it has never sent.",
    )
    initial_priorities: bool = Field(
        False,
        description="Whether actors compute the TD error of each row and send it along, as the row's first priority. "
        "It needs replay.prioritized.",
    )


class WorkerConfig(Settings):
    """The environments that a worker steps, whoever chooses the actions."""

    env: EnvConfig = Field(description="The environment, a gymnasium.Env or a gymnasium.vector.VectorEnv.")
    envs_per_actor: Annotated[int, Field(ge=1, le=MAX_ENVS_PER_ACTOR)] = Field(
        1,
        description="The number of environments (lanes) that one actor steps; its agent acts in all of them at once. "
        "A vector environment brings its own number.",
    )

    @model_validator(mode="before")
    @classmethod
    def _names_parts_in_full(cls, values: Any) -> Any:
        return write_out(values)

    @model_validator(mode="after")
    def _has_one_lane(self) -> Self:
        if self.env.rate_hz is not None and self.envs_per_actor != 1:
            raise ValueError(
                "envs_per_actor: expected 1 with env.rate_hz, since a robot is one lane, found "
                f"{self.envs_per_actor}; start an actor for each robot"
            )
        return self


class ActorConfig(WorkerConfig):
    """The settings of an actor: the parts that it builds, and how it works."""

    agent: PluginConfig = Field(description="The agent, a crossborder.Agent.")
    step_processor: PluginConfig | None = Field(
        None,
        description="Your own code that changes rows before an actor sends them: a crossborder.RowMap, or a "
        "StepProcessor, which makes self-contained items of the steps. null sends the rows as they are.",
    )
    push: PushConfig = Field(PushConfig(), description="How actors hand over their rows.")
    evaluator: EvaluatorConfig = Field(EvaluatorConfig(), description="How the agent is scored.")

    def to_json(self) -> str:
        """The settings for the wire, in a form that actors of the previous release understand (``unknown_before``).

        An infinite number is the text ``Infinity`` or ``-Infinity``, since JSON has no such number.
        """
        text = self.model_dump_json(exclude=unknown_before(self))
        return _TEXT_OR_INFINITY.sub(lambda found: found[0] if found[0][0] == '"' else f'"{found[0]}"', text)

    @classmethod
    def from_json(cls, text: str, where: str) -> ActorConfig:
        """Read what ``to_json`` wrote.

        Args:
            text: from a learner, of this or of the former release, which wrote infinite numbers as 1e999.
            where: begins the messages of errors.

        Raises:
            ConfigError: the text is no JSON, or no such configuration.
        """
        try:
            values = _with_infinities(parse_json(text, **ANY_NUMBER))
        except ValueError as error:  # Also for an integer of too many digits.
            raise ConfigError(f"{where}: expected JSON, found {len(text)} characters of other text: {error}") from error
        return validate(cls, values, where)


def _with_infinities(value: Any) -> Any:
    """The same plain value with infinite numbers in the place of the texts that stand for them."""
    if isinstance(value, dict):
        return {key: _with_infinities(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_infinities(inner) for inner in value]
    return _INFINITIES.get(value, value) if isinstance(value, str) else value
