"""The part of the configuration about copies of the run that leave the learner's host."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from common.settings import Settings

Acknowledgement = Literal["disk", "mirrored"]


class StorageConfig(Settings):
    """Copies of the run beyond the learner's host, which may vanish with its disk (docs/preemptible.md)."""

    mirror: str | None = Field(
        None,
        pattern=r"^[a-z][a-z0-9+.-]*://.+",
        description="The place to which `learner-server` copies the run while it trains, such as s3://bucket/run, "
        "gs://bucket/run or file:///mnt/share/run; one place for each run. null: nothing leaves the host.",
    )
    mirror_seconds: Annotated[float, Field(ge=0.1)] = Field(
        5.0,
        description="Seconds between two states of the mirror. If the host vanishes, about as many seconds of rows are "
        "lost.",
    )
    acknowledge: Acknowledgement = Field(
        "disk",
        description="When actors may forget their rows. disk: when the rows are in the replay on the learner's host; "
        "mirrored: when they are in the mirror too, so that a host that vanishes loses no acknowledged row.",
    )

    @model_validator(mode="after")
    def _has_mirror(self) -> StorageConfig:
        if self.acknowledge == "mirrored" and self.mirror is None:
            raise ValueError("acknowledge: mirrored needs storage.mirror: otherwise no row would ever be acknowledged")
        return self
