"""The part of the configuration that the learner sends to the actors in its answer to ``Join``."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import Field, PositiveFloat, field_validator

from common.config.evaluator_config import EvaluatorConfig
from common.plugins.part_config import EnvConfig, PluginConfig
from common.settings import Settings

_TEXT_OR_INFINITY: Final = re.compile(r'"(?:[^"\\]|\\.)*"|Infinity')

MAX_ENVS_PER_ACTOR: Final = 1024
MAX_BATCH_ROWS: Final = 1 << 20
MAX_WINDOW: Final = 1 << 16
MAX_SPOOL_BYTES: Final = 16 << 30
"""The largest values of settings that a learner sends to actors. An actor allocates memory according to them, so a
learner that is not trusted must not choose them freely."""


FORMER_PROCESSORS: Final = {
    "common.processors:OneStep": "Remove step_processor",
    "common.processors:NStep": "Remove step_processor and set replay.view.params.n",
}
"""The step processors of release 0.1, and their users' next step."""


class PushConfig(Settings):
    """How an actor hands over its rows."""

    n_buffer: Annotated[int, Field(ge=1, le=MAX_BATCH_ROWS)] = Field(
        100, description="Rows in one batch (border's n_buffer)."
    )
    flush_seconds: PositiveFloat | None = Field(
        0.5,
        description="A batch older than this is sent with its next row although it is not full; null sends only full "
        "batches.",
    )
    window: Annotated[int, Field(ge=1, le=MAX_WINDOW)] = Field(
        4,
        description="The number of unacknowledged batches at which a connected actor waits; without "
        "replay.samples_per_insert, only batches count that are older than 0.1 s.",
    )
    spool_bytes: Annotated[int, Field(ge=1, le=MAX_SPOOL_BYTES)] = Field(
        64 << 20,
        description="The size of an actor's spool: bytes of batches that are kept until they are acknowledged. While "
        "the learner is away, batches with pictures are kept compressed.",
    )
    when_full: Literal["block", "drop_oldest"] = Field(
        "block",
        description="What an actor does when its spool is full. block: it waits; drop_oldest: it goes on and drops the "
        "oldest batches that it has never sent.",
    )
    spool_seconds: PositiveFloat | None = Field(
        None, description="A batch that could not be sent for this time is dropped; null keeps all batches."
    )
    initial_priorities: bool = Field(
        False,
        description="Actors send with each row its TD error, which becomes its first priority; needs "
        "replay.prioritized.",
    )


class ActorConfig(Settings):
    """The settings of an actor: the parts that it builds, and how it works."""

    env: EnvConfig = Field(description="The environment, a gymnasium.Env or a gymnasium.vector.VectorEnv.")
    agent: PluginConfig = Field(description="The agent, a common.interfaces.Agent.")
    step_processor: PluginConfig | None = Field(
        None,
        description="A common.interfaces.RowMap, which changes rows before they are sent, or a StepProcessor, which "
        "makes self-contained items of the steps; null sends the rows as they are.",
    )
    push: PushConfig = Field(PushConfig(), description="How actors hand over their rows.")
    envs_per_actor: Annotated[int, Field(ge=1, le=MAX_ENVS_PER_ACTOR)] = Field(
        1,
        description="Environments (lanes) that one actor steps; its agent acts in all of them at once. A vector "
        "environment has a number of its own.",
    )
    evaluator: EvaluatorConfig = Field(EvaluatorConfig(), description="How the agent is scored.")

    def to_json(self) -> str:
        """The settings for the wire. Infinity is written as 1e999, which parsers in other languages read too."""
        text = self.model_dump_json()
        return _TEXT_OR_INFINITY.sub(lambda found: "1e999" if found[0] == "Infinity" else found[0], text)

    @field_validator("step_processor")
    @classmethod
    def _is_no_former_processor(cls, processor: PluginConfig | None) -> PluginConfig | None:
        if processor is not None and (instead := FORMER_PROCESSORS.get(processor.target)):
            raise ValueError(f"{processor.target} is gone: the learner makes transitions of rows. {instead}")
        return processor
