"""Saved policies for an acting service, with or without a recording of their episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from actor.episode_recording import EpisodeRecording, make_directory
from actor.proxy import ReplayBufferProxy
from actor.stat import ActorCounters
from common.config.actor_config import PushConfig
from common.data import INTERVENED, ModelVersion
from common.interfaces import acting_for_lanes
from common.lanes.policy import Policy
from common.parts import Parts
from crossborder.serving.following import Follower, stamps_of
from crossborder.serving.recording_player import RecordingPlayer
from crossborder.serving.served_policy import ServedPolicy
from crossborder.serving.serving_config import ServingConfig
from learner.storage.checkpoint import load_parts

RECORD_SECONDS: Final = 10.0
"""The time for writing the last episodes."""


@contextmanager
def opening(places: Mapping[str, Path], allow: Sequence[str], config: ServingConfig) -> Iterator[list[ServedPolicy]]:
    """A context with saved policies; their last episodes are written at its end.

    Args:
        places: by the name of each policy its directory; see ``ServedPolicy`` and ``load_parts``.
        allow: see ``load_parts``.
        config: of the service. The episodes of a policy with a name are recorded in a directory of this name.
    """
    with ExitStack() as stack:
        yield [stack.enter_context(_opening(name, place, allow, config)) for name, place in places.items()]


@contextmanager
def _opening(name: str, place: Path, allow: Sequence[str], config: ServingConfig) -> Iterator[ServedPolicy]:
    stamps = stamps_of(place)
    parts, parts_config, meta = load_parts(place, allow, config.device)
    acting_for_lanes(parts.agent)  # An agent that cannot act for some lanes is told before a client comes.
    policy = Policy(parts.agent, parts.frames, parts.frame_stack)
    recorded = None if config.record is None else _record(parts, config.record / name)

    def note(opt_steps: int) -> None:
        policy.opt_steps = opt_steps
        if config.explore:
            policy.explore()
        if recorded is not None:
            recorded.proxy.version = ModelVersion(1, opt_steps)

    note(meta["opt_steps"])
    follower, source = Follower(place, stamps, parts_config, parts.agent, note), str(place)
    player = policy if recorded is None else recorded.player
    try:
        yield ServedPolicy(player, config, name=name, follower=follower, source=source)
        if recorded is not None:
            recorded.player.flush()
    finally:
        if recorded is not None:
            recorded.recording.close(RECORD_SECONDS)


class _Recorded(NamedTuple):
    """A player whose steps are recorded, the recording, and the proxy that knows which model acts."""

    player: RecordingPlayer
    recording: EpisodeRecording
    proxy: ReplayBufferProxy


def _record(parts: Parts, directory: Path) -> _Recorded:
    """Make a player of a saved policy, and open the recording of its episodes."""
    make_directory(directory)
    rows = parts.rows if INTERVENED.name in parts.rows.by_name else parts.rows.plus(INTERVENED)
    parts = replace(parts, schema=rows, rows=rows, has_priorities=False)
    recording, proxy = EpisodeRecording(directory, rows), ReplayBufferProxy(rows, PushConfig(), lambda *_: None)
    player = RecordingPlayer(parts, lambda _: None, proxy, ActorCounters(), recording)  # There is no newer model.
    return _Recorded(player, recording, proxy)
