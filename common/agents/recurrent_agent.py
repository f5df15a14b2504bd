"""What agents with a memory share: they keep it in each lane, record it, and learn from sequences or rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from common.agents.network_agent import LaneMemory, NetworkAgent
from common.agents.networks.layers import Observed
from common.data import Array, Column, Items
from common.errors import ConfigError
from common.interfaces import Agent

SEQUENCES = "replay.view: {target: learner.views.sequences:Sequences, params: {length: 40, burn_in: 10}}"


class RecurrentAgent(NetworkAgent):
    """Records ``state`` before each action: the state of the memory, and the previous action, in one vector ``[S]``.

    A subclass sets ``lane_memory`` and writes it in ``sample``. There is no greedy policy for export, as it would have
    no memory, and there are no TD errors of single transitions.
    """

    lane_memory: LaneMemory
    """Lives on the CPU, where actions are."""
    _before: Array

    td_error = Agent.td_error
    policy = Agent.policy

    def begin(self, begins: Array, lanes: Array | None = None) -> None:
        self.lane_memory.begin(begins, lanes, is_train=self.is_train)

    def extra_columns(self) -> Sequence[Column]:
        return [*super().extra_columns(), Column.of("state", np.float32, self.lane_memory.shape)]

    def extras(self) -> Items:
        return {**super().extras(), "state": self._before}

    def _recall(self, lanes: Array | None) -> Array:
        """The state of each lane before the action that is to be chosen, ``[n, S]``."""
        self._before = self.lane_memory.read(lanes, is_train=self.is_train).numpy()
        return self._before

    def _remember(self, memory: Array, action: Array, lanes: Array | None) -> None:
        """Keep the state of the memory ``[n, M]`` and the action that was chosen ``[n, S - M]`` for the next step."""
        state = np.concatenate((memory, action), axis=1, dtype=np.float32)
        self.lane_memory.write(torch.from_numpy(state), lanes, is_train=self.is_train)


def require_sequences(agent: str, batch: Mapping[str, torch.Tensor]) -> None:
    """Check that a batch holds sequences, each within one episode.

    Args:
        agent: the agent's name, for the message.
        batch: as the view made it.

    Raises:
        ConfigError: the batch does not, or the rows have no recurrent state.
    """
    if not {"mask", "warm", "first"} <= batch.keys():
        raise ConfigError(
            f"replay.view: {agent} has a memory and learns from sequences, but a batch has {', '.join(sorted(batch))}; "
            f"set {SEQUENCES}"
        )
    if "state" not in batch:
        raise ConfigError(f"replay: {agent} begins sequences in the state that it recorded, but rows have no 'state'")
    if bool(batch["first"][:, 1:].any()):
        raise ConfigError(f"replay.view.params.across: {agent} learns from sequences of one episode; remove across")


def add_time(obs: Observed) -> Observed:
    """Observations of n lanes as sequences of one step, ``[n, *shape]`` to ``[n, 1, *shape]``."""
    return {path: leaf[:, None] for path, leaf in obs.items()} if isinstance(obs, dict) else obs[:, None]
