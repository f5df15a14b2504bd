"""A saved policy whose steps are recorded as episodes, for a dataset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from actor.episode_recording import EpisodeRecording, make_directory
from actor.proxy import ReplayBufferProxy
from actor.stat import ActorCounters
from common.config.actor_config import PushConfig
from common.data import INTERVENED, BufferedItems, ModelVersion
from common.parts import Parts
from crossborder.serving.recording_player import RecordingPlayer


class Nowhere:
    """A ``BatchSink`` for rows that are recorded and not sent."""

    def send(self, batch: BufferedItems, behaviour: ModelVersion) -> None:
        """Take rows."""


class Recorded(NamedTuple):
    """A player whose steps are recorded, the recording, and the proxy that knows which model acts."""

    player: RecordingPlayer
    recording: EpisodeRecording
    proxy: ReplayBufferProxy


def record(parts: Parts, directory: Path) -> Recorded:
    """Make a player of a saved policy, and open the recording of its episodes.

    Args:
        parts: of the policy, without lanes.
        directory: into which every whole episode is written; it is made.

    Raises:
        ConfigError: nothing can be written there.
        PluginError: the agent cannot act for some of its lanes.
    """
    make_directory(directory)
    rows = parts.rows if INTERVENED.name in parts.rows.by_name else parts.rows.plus(INTERVENED)
    parts = replace(parts, schema=rows, rows=rows, has_priorities=False)
    recording, proxy = EpisodeRecording(directory, rows), ReplayBufferProxy(rows, PushConfig(), Nowhere())
    player = RecordingPlayer(parts, lambda _: None, proxy, ActorCounters(), recording)  # There is no newer model.
    return Recorded(player, recording, proxy)
