"""A person alone plays an environment by a device, without agent and learner, and each episode becomes a file."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import gymnasium
import numpy as np

from actor.episode_recording import EpisodeRecording
from actor.sampling.sampler import Sampler
from actor.stat import ActorCounters
from common import spaces
from common.data import FINAL, INTERVENED, Array, Items, Leaves
from common.errors import ConfigError
from common.interfaces import EnvSpec, FixedAgent
from common.lanes.building import build_lanes
from common.lanes.lanes import DISCARDED, SUCCESS, AnyEnv, Lanes
from common.lanes.pace import Pace
from common.lanes.plain_lanes import PlainLanes
from common.lanes.safe_stop import stop_safely
from common.parts import Parts, row_schema
from common.plugins.part_config import EnvConfig
from crossborder.people.controls import rest_of
from crossborder.people.teleoperation import INTERVENE_ACTION, Teleoperate

FINISH_SECONDS: Final = 60.0
"""The seconds within which the last episodes must be written."""


class Resting(FixedAgent):
    """Gives the resting action while no person acts."""

    def __init__(self, spec: EnvSpec) -> None:
        self._rest = {path: rest_of(leaf) for path, leaf in spaces.leaves_of(spec.action_space).items()}

    def sample(self, obs: Leaves) -> Leaves:
        n = len(next(iter(obs.values()))) if isinstance(obs, dict) else len(obs)
        actions: dict[str, Array] = {path: np.repeat(rest[None], n, axis=0) for path, rest in self._rest.items()}
        return actions[""] if actions.keys() == {""} else actions


class Spectator:
    """Counts episodes and tells the user of each. It takes the rows of one lane, as a learner would."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self.kept = 0
        """Episodes that have ended and were not discarded."""
        self._clear()

    def _clear(self) -> None:
        self._steps = self._acted = 0
        self._return = 0.0
        self._is_success = self._is_discarded = False

    def takes(self, rows: int) -> bool:
        return rows > 0

    def push(self, items: Items) -> None:
        """Look at rows, in the order of time."""
        is_step = ~items[FINAL.name]
        if is_step.any():
            self._steps += int(np.count_nonzero(is_step))
            self._acted += int(np.count_nonzero(items[INTERVENED.name][is_step]))
            self._return += float(items["reward"][is_step].sum())
            self._is_success = bool(items[f"info/{SUCCESS}"][is_step][-1])
            self._is_discarded = bool(items[f"info/{DISCARDED}"][is_step][-1])
        if items[FINAL.name][-1]:
            self._end()

    def _end(self) -> None:
        figures = f"{self._steps} steps, {self._acted} of them by the person, return {self._return:g}"
        if self._is_discarded:
            self._tell(f"discarded: {figures}")
        else:
            self.kept += 1
            self._tell(f"episode {self.kept}: {figures}, {'success' if self._is_success else 'no success'}")
        self._clear()


def record_demonstrations(
    config: EnvConfig,
    directory: Path,
    episodes: int | None,
    stopped: threading.Event,
    tell: Callable[[str], object],
) -> int:
    """Let a person play, write each episode that the person does not discard, and return the number of files.

    At steps at which the person does not act, the action is 0, or as near to 0 as bounds allow. Files have the columns
    of ``env.info``, and always ``intervened``, ``info/is_success`` and ``info/discarded``.

    Args:
        config: names the environment, with ``Teleoperate`` among its wrappers.
        directory: exists.
        episodes: how many to record; None: until ``stopped`` is set.
        stopped: ends the play; the unfinished episode is not written.
        tell: takes a line for the user at the end of each episode.

    Raises:
        ConfigError: no person can act in this environment.
        CrossborderError: the environment or the device cannot be built, or fails.
    """
    asked = {
        "info": {SUCCESS: "bool", DISCARDED: "bool", **config.info},
        "intervention": config.intervention or INTERVENE_ACTION,
    }
    config = config.model_copy(update=asked)
    lanes = build_lanes(config)
    try:
        _require_person(lanes)
        parts, counters, spectator = _build_parts(config, lanes), ActorCounters(), Spectator(tell)
        pace = Pace(config.rate_hz, stopped, counters.note_tick) if config.rate_hz is not None else None
        recording = EpisodeRecording(directory, parts.rows)
        try:
            sampler = Sampler(parts, counters, secrets.randbits(31), pace, recording)
            while not stopped.is_set() and (episodes is None or spectator.kept < episodes):
                sampler.sample_and_push(parts.agent, spectator)
        finally:
            stop_safely(lanes, config)  # The disk may take long, and nobody steers any more.
            recording.close(FINISH_SECONDS)
        return recording.recorded
    finally:
        lanes.close()


def _require_person(lanes: Lanes) -> None:
    """Check that a person can act."""
    env: AnyEnv = lanes.envs[0] if isinstance(lanes, PlainLanes) else None
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, Teleoperate):
            return
        env = env.env
    raise ConfigError(
        "env.wrappers: expected Teleoperate, by which a person acts, around an "
        "environment that is no vector environment; found none"
    )


def _build_parts(config: EnvConfig, lanes: Lanes) -> Parts:
    agent = Resting(lanes.spec)
    rows = row_schema(lanes.spec, agent, config)
    return Parts(agent, rows, lanes.spec, lanes.spec, rows, lanes=lanes)
