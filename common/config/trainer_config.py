"""The learner loop's part of the configuration."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AliasChoices, Field, PositiveInt, model_validator

from common.cores import Cores
from common.settings import Seconds, Settings

Interval = Annotated[int | None, Field(ge=0)]
Precision = Literal["float32", "bfloat16"]
ModelForm = Literal["whole", "bfloat16", "deltas", "bfloat16_deltas"]
ComputingPrecision = Literal["float32", "rounded_products", "bfloat16"]
ProductChoice = Literal["measured", "torch", "onednn"]


class TrainerConfig(Settings):
    """The learner loop. Intervals count opt steps; 0 or null means never."""

    GONE: ClassVar = {
        "keep_checkpoints": 3,
        "opt_interval": 1,
        "rank_seconds": 60.0,
        "model_precision": "float32",
        "model_deltas": 0,
    }
    INSTEAD: ClassVar = {
        "model_precision": "write trainer.models: bfloat16, or bfloat16_deltas",
        "model_deltas": "write trainer.models: deltas, or bfloat16_deltas",
    }

    max_opts: PositiveInt = Field(
        description="The number of opt steps after which training ends.",
        validation_alias=AliasChoices("max_opts", "max_train_steps"),
    )
    max_seconds: Seconds | None = Field(
        None, description="The seconds after which training ends at the latest; null: no limit."
    )
    max_env_steps: PositiveInt | None = Field(
        None,
        description="The number of environment steps in the replay, over the whole run, at which training ends at the "
        "latest; null: no limit. With actors, some more may arrive meanwhile. It has no effect in offline-train.",
    )
    target_score: float | None = Field(
        None,
        description="The score that training has to reach: it ends with success when an evaluation scores at least "
        "this. If training ends earlier for another reason, the command fails. null: no target.",
    )
    warmup_period: PositiveInt = Field(
        1, description="The number of steps that the replay must hold before the first opt step."
    )
    eval_interval: Interval = Field(1000, description="The number of opt steps between two evaluations.")
    record_interval: Interval = Field(
        200, description="The number of opt steps between two records of losses and rates."
    )
    save_interval: Interval = Field(
        None,
        description="The number of opt steps after which the agent is saved again, each time to a new directory "
        "{opt_steps}/.",
    )
    checkpoint_seconds: Seconds | None = Field(
        60.0,
        description="Seconds between two checkpoints, from which --resume goes on. null writes a checkpoint only "
        "when training ends.",
    )
    sync_interval: Interval = Field(
        100, description="The number of opt steps after which the newest model is published to the actors."
    )
    starvation_seconds: Seconds | None = Field(
        None,
        description="Seconds that the trainer waits for rows from actors. If none arrives in this time, training "
        "fails; null waits without limit.",
    )
    device: str = Field(
        "cpu",
        description="The device on which the learner trains, such as cpu, cuda or cuda:1. Actors always act on the "
        "CPU.",
    )
    precision: ComputingPrecision = Field(
        "float32",
        description="The precision of opt steps; parameters and acting stay in float32. float32: on a GPU, "
        "convolutions and memories still round their inputs to TF32. bfloat16: matrices are multiplied in bfloat16 "
        "(torch.autocast). rounded_products: tensors stay float32, but a product of matrices rounds its inputs, to "
        "bfloat16 on a CPU and to TF32 on a GPU.",
    )
    models: ModelForm = Field(
        "whole",
        description="How models travel to the actors, for thin links. whole: as they are; bfloat16: in half the bytes, "
        "and actors act with rounded weights; deltas: an actor that has a recent model fetches only the compressed "
        "difference to the newest model; bfloat16_deltas: both.",
    )
    torch_threads: Annotated[int, Field(ge=1, le=1024)] = Field(
        1, description="The number of CPU threads that torch uses in the trainer."
    )
    cores: Cores | None = Field(
        None,
        description="The cores that trainer, ingest and a child that evaluates use, listed as Linux lists them, such "
        "as 0-3,8. The other cores that the command may use are divided among local actors. null: all processes use "
        "all cores.",
    )
    products: ProductChoice = Field(
        "measured",
        description="The library that multiplies matrices of float32 on the learner's CPU. torch: the one that torch "
        "uses by itself, on x86 MKL; onednn: oneDNN, for all but small products; measured: for each shape the faster "
        "one, measured once on a host. Actors measure.",
    )

    @property
    def model_precision(self) -> Precision:
        """The precision of the models that actors fetch."""
        return "bfloat16" if self.models.startswith("bfloat16") else "float32"

    @property
    def sends_deltas(self) -> bool:
        """Whether an actor that has a recent model fetches only the difference to the newest model."""
        return self.models.endswith("deltas")

    @model_validator(mode="after")
    def _threads_have_cores(self) -> TrainerConfig:
        if self.cores is not None and self.torch_threads > len(self.cores):
            raise ValueError(
                f"trainer.torch_threads: expected at most {len(self.cores)}, the number of trainer.cores, found "
                f"{self.torch_threads}"
            )
        return self
