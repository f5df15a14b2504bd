"""The parts with which an actor acts after it has joined, and the loop that may act in its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from actor.client.fetcher import ModelFetcher
from actor.client.join_answer import JoinAnswer
from actor.client.pusher import Pusher
from actor.episode_recording import EpisodeRecording
from actor.stat import ActorCounters
from common.parts import Parts


@dataclass(frozen=True)
class Acting:
    """What an actor acts with, from its first model until it has to stop or to start anew."""

    parts: Parts
    joined: JoinAnswer
    models: ModelFetcher
    """The first model has come already."""
    pusher: Pusher
    counters: ActorCounters
    recording: EpisodeRecording | None
    """Takes the rows too; None: they are not recorded."""
    ends: Callable[[], bool]
    """Whether the actor has to stop or to start anew."""


class ActLoop(Protocol):
    """Acts in lanes that are no environments of this process: those of clients, for example."""

    device: str
    """Where the policy of these lanes computes."""

    def __call__(self, acting: Acting) -> None:
        """Act with the newest model, and push the rows, until ``acting.ends()`` is true. The parts have no lanes.

        Raises:
            CrossborderError: it cannot go on.
        """
