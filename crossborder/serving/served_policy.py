"""A policy that an acting service has for its clients, with its own batches and figures."""

from __future__ import annotations

from crossborder.serving.batching import Batcher, Player, StepSink
from crossborder.serving.description import Description
from crossborder.serving.figures import PolicyFigures
from crossborder.serving.serving_config import ServingConfig


class ServedPolicy:
    """A policy under the name by which clients ask for it.

    Args:
        player: chooses its actions.
        config: of the service.
        sink: takes the steps of its lanes; None: nobody does.
        name: empty if the service has this policy alone, and clients need not name it.

    Raises:
        ConfigError: a leaf of its spaces cannot travel.
    """

    def __init__(self, player: Player, config: ServingConfig, sink: StepSink | None = None, name: str = "") -> None:
        self.name, self.player = name, player
        self.description = Description(player.spec, takes_executed=sink is None or sink.takes_executed)
        self.figures = PolicyFigures()
        self.lanes = self.connected_lanes = 0
        """Lanes of its sessions, and those of them that have a connection."""
        self.batches = Batcher(
            player,
            self.description,
            max_rows=config.max_batch,
            max_wait=config.max_wait_ms / 1000,
            count_lanes=lambda: self.connected_lanes,
            figures=self.figures,
            sink=sink,
        )
