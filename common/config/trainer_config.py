"""The learner loop's part of the configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AliasChoices, Field, NonNegativeInt, PositiveFloat, PositiveInt

from common.settings import Settings

Interval = Annotated[int | None, Field(ge=0)]
Precision = Literal["float32", "bfloat16"]


class TrainerConfig(Settings):
    """The learner loop. Intervals count opt steps; 0 or null means never."""

    max_opts: PositiveInt = Field(
        description="Training ends after this many opt steps.",
        validation_alias=AliasChoices("max_opts", "max_train_steps"),
    )
    max_seconds: PositiveFloat | None = Field(None, description="Training ends after this many seconds at the latest.")
    target_score: float | None = Field(
        None,
        description="Training succeeds and ends when an evaluation scores at least this. If it ends without, the "
        "command fails.",
    )
    warmup_period: PositiveInt = Field(
        1, description="The number of steps that the replay must hold before the first opt step."
    )
    eval_interval: Interval = Field(1000, description="Opt steps from one evaluation to the next.")
    record_interval: Interval = Field(200, description="Opt steps from one record of losses and rates to the next.")
    save_interval: Interval = Field(
        None, description="Opt steps from one saved agent to the next, each in a directory {opt_steps}/."
    )
    checkpoint_seconds: PositiveFloat | None = Field(
        60.0,
        description="Seconds from one checkpoint to the next, from which --resume can go on; null writes one only when "
        "training ends.",
    )
    keep_checkpoints: PositiveInt = Field(
        3, description="The number of checkpoints that are kept; the oldest is deleted."
    )
    sync_interval: Interval = Field(100, description="Opt steps from one model published to the actors to the next.")
    opt_interval: PositiveInt = Field(
        1,
        description="Environment steps per opt step. It counts only in sync-train without replay.samples_per_insert.",
    )
    starvation_seconds: PositiveFloat | None = Field(
        None,
        description="Training fails when no row has arrived for this time while the trainer waits for rows; null "
        "waits forever.",
    )
    device: str = Field(
        "cpu", description="Where the learner trains: cpu, cuda or cuda:1, for example. Actors always act on the CPU."
    )
    precision: Precision = Field(
        "float32",
        description="bfloat16: opt steps multiply matrices in bfloat16 (torch.autocast); parameters and acting stay in "
        "float32.",
    )
    model_precision: Precision = Field(
        "float32",
        description="bfloat16: models are sent to actors in half the bytes, and actors act with rounded parameters.",
    )
    model_deltas: NonNegativeInt = Field(
        0,
        description="The number of earlier models that ingest keeps, for slow links. An actor that has one of them is "
        "sent only what has changed since, compressed. 0 always sends whole models.",
    )
    torch_threads: PositiveInt = Field(1, description="The number of threads that torch uses in the trainer.")
