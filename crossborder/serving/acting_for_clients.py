"""An acting service that is an actor of a run: what the actor does while it is joined."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from actor.acting import Acting
from actor.proxy import ReplayBufferProxy
from common.errors import ConfigError
from crossborder.serving.recording_player import RecordingPlayer
from crossborder.serving.served_policy import ServedPolicy
from crossborder.serving.serving import Places, serve
from crossborder.serving.serving_config import ServingConfig


class ActingForClients:
    """The ``ActLoop`` of an actor whose lanes are those of clients.

    Args:
        learner: its address.
        config: of the service.
        on_listening: called whenever clients are served. The service begins anew with each run, and whenever its run
            goes on with other settings of actors.
    """

    def __init__(self, learner: str, config: ServingConfig, on_listening: Callable[[Places], None]) -> None:
        self._learner, self._config, self._on_listening = learner, config, on_listening
        self.device = config.device

    def __call__(self, acting: Acting) -> None:
        """See ``ActLoop``.

        Raises:
            ConfigError: the run's step processor makes items.
        """
        parts, joined, pusher = acting.parts, acting.joined, acting.pusher
        if parts.processors:
            raise ConfigError("--learner: expected a run of rows, found step_processor, which makes its own items")
        proxy = ReplayBufferProxy(joined.schema, joined.config.push, pusher.send)
        player = RecordingPlayer(parts, acting.models.newer_than, proxy, acting.counters, acting.recording)
        parts.agent.train()
        config = self._config.model_copy(update={"seed": joined.seed, "explore": True})
        policy = ServedPolicy(player, config, source=self._learner)
        asyncio.run(serve([policy], config, acting.ends, self._on_listening, lambda: pusher.is_run_over))
        player.flush()
