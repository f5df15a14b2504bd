"""A policy that an acting service has for its clients, with its own batches and figures."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any, NoReturn

from common.wire.acting_payloads import Description
from common.wire.pb import acting_pb2 as pb
from crossborder.serving.batching import Batcher, Player
from crossborder.serving.figures import PolicyFigures
from crossborder.serving.following import Follower
from crossborder.serving.recording_player import RecordingPlayer
from crossborder.serving.serving_config import ServingConfig


class ServedPolicy:
    """A policy under the name by which clients ask for it.

    Args:
        player: chooses its actions; one that records takes the steps of its lanes too.
        config: of the service.
        name: empty if the service has this policy alone, and clients need not name it.
        follower: brings newer parameters; None: the player does, or there are none.
        source: where it comes from, for people.

    Raises:
        ConfigError: a leaf of its spaces cannot travel.
    """

    def __init__(
        self,
        player: Player,
        config: ServingConfig,
        *,
        name: str = "",
        follower: Follower | None = None,
        source: str = "",
    ) -> None:
        self.name, self.player, self.source = name, player, source
        self._sink = sink = player if isinstance(player, RecordingPlayer) else None
        self._follower = follower
        self.description = Description(player.spec, takes_executed=sink is None or sink.takes_executed)
        self.figures = PolicyFigures()
        self.connected_lanes = 0
        """Lanes of its sessions that have a connection."""
        self.batches = Batcher(
            player,
            self.description,
            max_rows=config.max_batch,
            max_wait=config.max_wait_ms / 1000,
            count_lanes=lambda: self.connected_lanes,
            figures=self.figures,
            sink=sink,
        )

    def note_report(self, report: pb.ClientReport) -> None:
        """Take the figures of a client.

        Raises:
            BadMessageError: one of them is impossible.
        """
        if self._sink is not None:
            self._sink.note_report(report)

    def works(self) -> Iterator[Coroutine[Any, Any, NoReturn]]:
        """What must run as long as the policy is served; each ends only with an error."""
        yield self.batches.run()
        if self._follower is not None:
            yield self._follower.run(self.figures)
