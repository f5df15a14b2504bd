"""Opening a run's replay: the memory that ingest fills, and the buffer from which the agent learns."""

from __future__ import annotations

import shutil
from functools import partial

import torch

from common.config.replay_config import ReplayConfig
from common.config.run_config import RunConfig
from common.data import Schema
from common.errors import PluginError
from common.interfaces import ReplayBuffer
from learner.loop.resident import ResidentReplay
from learner.replay.memory import ReplayMemory
from learner.replay.prioritized import PrioritizedReplay
from learner.replay.recovery import make_whole
from learner.replay.shared_buffer import SharedReplay
from learner.replay.uniform import UniformReplay
from learner.storage.resume import ResumePoint
from learner.storage.rundir import RunDir


def open_memory(
    directory: RunDir, schema: Schema, config: ReplayConfig, slack: int, earlier: ResumePoint | None
) -> ReplayMemory:
    """Open the replay memory of a run; it is empty for a new run and for a resumed run whose replay is missing.

    Args:
        directory: of the run.
        schema: of its items.
        config: its capacities.
        slack: number of newest items that a new memory can be rolled back by.
        earlier: the state that earlier lives of the run left; None for a new run.

    Raises:
        RunDirectoryError: the files cannot be made or opened.
        SchemaMismatchError: the files hold other items, or another number of them.
    """
    path, draft = directory.shared / "replay", directory.shared / ".replay.part"
    opened = partial(ReplayMemory, schema=schema, capacity=config.capacity, frame_capacity=config.frame_capacity)
    with directory.writing():
        if earlier is not None and path.exists():
            memory = opened(path, create=False, checked=False)
            make_whole(memory, lambda: earlier.watermark)
            return memory
        began = earlier.warn_of_missing_replay(config.capacity) if earlier is not None else 0
        shutil.rmtree(draft, ignore_errors=True)
        memory = opened(draft, create=True, slack=slack, began=began)
        memory.directory = draft.rename(path)  # After a kill, ``path`` holds the whole replay or does not exist.
        return memory


def build_buffer(memory: ReplayMemory, config: RunConfig) -> SharedReplay:
    """Build the replay buffer that the configuration names: uniform, prioritised, or the user's own.

    Raises:
        PluginError: the user's own cannot be built, or is no ``SharedReplay``.
        ConfigError: the items have a column of a name that prioritised replay uses.
    """
    replay, seed = config.replay, config.seed
    if replay.own is not None:
        buffer = replay.own.build(memory=memory, seed=seed)
        if not isinstance(buffer, SharedReplay):
            raise PluginError(
                f"replay.target: expected a learner.replay.shared_buffer.SharedReplay, found {type(buffer).__name__}"
            )
        return buffer
    if replay.prioritized is not None:
        return PrioritizedReplay(memory, replay.prioritized, seed, config.trainer.max_opts)
    return UniformReplay(memory, seed)


def place_on_device(buffer: SharedReplay, memory: ReplayMemory, config: RunConfig) -> ReplayBuffer:
    """The buffer from which the agent draws: with ``replay.resident`` it copies its items to ``trainer.device``.

    Raises:
        ConfigError: the device has not enough room.
    """
    if not config.replay.resident:
        return buffer
    return ResidentReplay(buffer, memory, torch.device(config.trainer.device))
