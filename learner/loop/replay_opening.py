"""Opening a run's replay: the memory that ingest fills, and the buffer from which the agent learns."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial

import torch

from common.config.replay_config import ReplayConfig, ViewConfig, discount_of
from common.config.run_config import RunConfig
from common.data import Schema
from common.errors import ConfigError, PluginError
from common.interfaces import ReplayBuffer
from common.lanes.building import build_env
from common.plugins.part_loading import naming_fault
from learner.loop.resident import ResidentReplay
from learner.replay.interventions import PrioritizedInterventions, UniformInterventions
from learner.replay.memory import ReplayMemory
from learner.replay.mixed_replay import MixedReplay, Source
from learner.replay.prioritized import PrioritizedReplay
from learner.replay.recovery import make_whole
from learner.replay.shared_buffer import SharedReplay
from learner.replay.uniform import UniformReplay
from learner.replay.view import View
from learner.storage.resume import ResumePoint
from learner.storage.rundir import RunDir
from learner.views.items import SelfContained
from learner.views.staleness import AgeWeights, any_version


def open_memory(
    directory: RunDir, schema: Schema, config: ReplayConfig, slack: int, earlier: ResumePoint | None
) -> ReplayMemory:
    """Open the replay memory of a run; it is empty for a new run and for a resumed run whose replay is missing.

    Args:
        directory: of the run.
        schema: of its rows.
        config: its capacity.
        slack: number of newest rows that a new memory can be rolled back by.
        earlier: the state that earlier lives of the run left; None for a new run.

    Raises:
        RunDirectoryError: the files cannot be made or opened.
        SchemaMismatchError: the files hold other columns, or have another capacity.
    """
    path, draft = directory.shared / "replay", directory.shared / ".replay.part"
    opened = partial(ReplayMemory, schema=schema, capacity=config.capacity)
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


def build_buffer(
    memory: ReplayMemory,
    config: RunConfig,
    datasets: Mapping[str, ReplayMemory] | None = None,
    newest_model: Callable[[], int] = any_version,
) -> SharedReplay | MixedReplay:
    """Build the replay buffer that the configuration names: uniform, prioritised, or the user's own.

    Args:
        memory: of the actors' rows.
        config: of the run.
        datasets: the rows of the datasets of ``replay.sources``, by name of the source; None: no sources. Shares of
            every batch are drawn from them, and from interventions, uniformly or by priority.
        newest_model: gives the opt steps of the newest model for the actors.

    Raises:
        PluginError: a user's own part cannot be built, or is not a ``SharedReplay`` or a ``View``.
        ConfigError: the rows have a column of a name that prioritised replay uses, or do not suit the view.
    """
    own = _build_own(memory, config, newest_model)
    if not config.replay.sources or datasets is None:
        return own
    sources, n = dict[str, Source](), len(config.replay.sources)
    for i, (name, source) in enumerate(config.replay.sources.items(), config.seed + 1):
        dataset = _build_shipped(datasets[name], config, i) if source.dataset is not None else None
        of_people = None
        if source.interventions:
            of_people = _build_shipped(memory, config, i + n, newest_model, interventions=True)
        sources[name] = Source(source.share, dataset, of_people)
    return MixedReplay(own, sources, config.seed)


def _build_own(memory: ReplayMemory, config: RunConfig, newest_model: Callable[[], int]) -> SharedReplay:
    """The buffer over the actors' rows."""
    if config.replay.own is None:
        return _build_shipped(memory, config, config.seed, newest_model)
    view = build_view(memory.schema, config, newest_model)
    with naming_fault(f"replay {config.replay.own.target}"):
        buffer = config.replay.own.build(memory=memory, view=view, seed=config.seed)
    if not isinstance(buffer, SharedReplay):
        raise PluginError(f"replay.target: expected a crossborder.SharedReplay, found {type(buffer).__name__}")
    return buffer


def _build_shipped(
    memory: ReplayMemory,
    config: RunConfig,
    seed: int,
    newest_model: Callable[[], int] = any_version,
    *,
    interventions: bool = False,
) -> SharedReplay:
    """A buffer over the rows of a memory, or over those with an intervention only."""
    view, prioritized = build_view(memory.schema, config, newest_model), config.replay.prioritized
    if prioritized is None:
        return (UniformInterventions if interventions else UniformReplay)(memory, view, seed)
    kind = PrioritizedInterventions if interventions else PrioritizedReplay
    return kind(memory, view, prioritized, seed, _count_updates(config))


def _count_updates(config: RunConfig) -> int:
    """The updates of priorities in the whole run: an agent may take several in one opt step."""
    updates: int = config.trainer.max_opts * config.agent.params.get("n_updates_per_opt", 1)
    return updates


def build_view(schema: Schema, config: RunConfig, newest_model: Callable[[], int] = any_version) -> View:
    """Build the view that the configuration names, or ``SelfContained`` for items if it names none.

    Raises:
        PluginError: it cannot be built, or is not a ``View``.
        ConfigError: the rows do not suit it.
    """
    named = config.replay.view
    if not schema.is_rows and named == ViewConfig():
        return SelfContained(schema)
    make_env = partial(build_env, config.env) if config.env.spaces is None else None
    given = {
        "schema": schema,
        "stack": config.env.frame_stack,
        "discount_factor": discount_of(config.agent),
        "make_env": make_env,
    }
    with naming_fault(f"replay.view {named.target}"):
        view = named.build(optional=given)
    if not isinstance(view, View):
        raise PluginError(f"replay.view.target: expected a crossborder.View, found {type(view).__name__}")
    needed = view.steps if view.crosses_episodes else view.reach
    if needed > config.replay.capacity:
        raise ConfigError(
            f"replay.capacity: expected at least {needed} rows, for a draw of replay.view, found "
            f"{config.replay.capacity}"
        )
    half_age = config.replay.half_age
    if half_age is not None:
        view.weigh = AgeWeights(schema, half_age, newest_model).add
    settings = config.model_dump(mode="json", include={"env": True, "replay": {"view", "half_age"}})
    view.settings = json.dumps([settings, given["discount_factor"]], sort_keys=True)
    return view


def place_on_device(buffer: SharedReplay | MixedReplay, config: RunConfig) -> ReplayBuffer:
    """The buffer from which the agent draws: with ``replay.resident`` it copies its rows to ``trainer.device``.

    Raises:
        ConfigError: the device has not enough room.
    """
    if not config.replay.resident:
        return buffer
    return ResidentReplay(buffer, torch.device(config.trainer.device))
