"""A saved policy whose steps are recorded as episodes, for a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from actor.episode_recording import EpisodeRecording
from actor.proxy import ReplayBufferProxy
from actor.stat import ActorCounters
from common.config.actor_config import PushConfig
from common.data import INTERVENED, BufferedItems, Model, ModelVersion
from crossborder.serving.recording_player import RecordingPlayer
from learner.evaluation.policy import Policy
from learner.storage.checkpoint import load_parts


class OnlyModel:
    """The ``Models`` of a saved policy: there is no newer one."""

    def newer_than(self, version: ModelVersion) -> Model | None:  # noqa: ARG002 - as in Models
        return None


class Nowhere:
    """A ``BatchSink`` for rows that are recorded and not sent."""

    def send(self, batch: BufferedItems, behaviour: ModelVersion) -> None:
        """Take rows."""


def load_recorded_policy(
    directory: Path, allow: Sequence[str], record: Path, *, explores: bool, device: str
) -> tuple[RecordingPlayer, EpisodeRecording]:
    """Load a saved policy as a player, and open the recording of its episodes.

    Args:
        directory: see ``load_policy``.
        allow: see ``load_policy``.
        record: the directory into which every whole episode is written.
        explores: whether the policy explores.
        device: where the policy computes.

    Raises:
        CrossborderError: see ``load_policy``.
    """
    parts, _, meta = load_parts(directory, allow, device)
    if explores:
        Policy(parts.agent, parts.frames, parts.frame_stack, meta["opt_steps"]).explore()
    rows = parts.rows if INTERVENED.name in parts.rows.by_name else parts.rows.plus(INTERVENED)
    parts = replace(parts, schema=rows, rows=rows, has_priorities=False)
    recording, proxy = EpisodeRecording(record, rows), ReplayBufferProxy(rows, PushConfig(), Nowhere())
    proxy.version = ModelVersion(1, meta["opt_steps"])
    return RecordingPlayer(parts, OnlyModel(), proxy, ActorCounters(), recording), recording
