"""The core of ingest over files of its own: no sockets, no trainer, no other process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from common.config.run_config import RunConfig
from common.config.server_config import MESSAGE_BYTES
from common.data import Schema
from learner.ingest.core import IngestBoot, IngestCore
from learner.models.publisher import ModelPublisher
from learner.replay.memory import ReplayMemory
from learner.shared.actor_table import map_actor_table
from learner.shared.bell import Bell
from learner.shared.control import ControlBlock
from learner.shared.mirror_block import MirrorBlock


class LoneCore:
    """An ``IngestCore``, and what the trainer would hold.

    Args:
        directory: where the files are made.
        config: of the run.
        schema: of the rows.
        replay: where the replay begins, see ``ReplayMemory``.
    """

    def __init__(self, directory: Path, config: RunConfig, schema: Schema, **replay: Any) -> None:
        directory.mkdir()
        ControlBlock.open(directory, create=True).start(1, 0)
        map_actor_table(directory, create=True)
        ReplayMemory(directory / "replay", schema, config.replay.capacity, create=True, **replay)
        self.mirror = MirrorBlock.open(directory)
        self.publisher = ModelPublisher(directory / "models", {"steps": torch.zeros(1)}, 1)
        self.publisher.publish(0)
        self.candidates = ModelPublisher(directory / "candidates", {"steps": torch.zeros(1)}, 1)
        self.bell = Bell.create()
        boot = IngestBoot(
            config=config,
            directory=directory,
            run_id="lone",
            columns=schema.to_json(),
            message_bytes=MESSAGE_BYTES,
            model_bytes=self.publisher.blob_bytes,
            addresses=("127.0.0.1:0",),
            metrics_ports=(None,),
            bell_fds=(self.bell.write_fd, self.bell.read_fd),
        )
        self.core = IngestCore(boot)

    def close(self) -> None:
        self.bell.close()
