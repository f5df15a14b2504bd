"""What agents with a memory share: they keep it in each lane, record it, and learn from sequences or rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import nn

from common.agents.machinery.lane_states import LaneState
from common.agents.network_agent import NetworkAgent
from common.agents.networks.layers import Observed, flatten_time
from common.data import Array, Column, Items
from common.errors import ConfigError
from common.interfaces import Agent
from common.leaves import capacity_for
from common.settings import Settings

MemoryKind = Literal["lstm", "gru"]


class MemoryConfig(Settings):
    """``memory`` of agents with a memory."""

    kind: MemoryKind = Field(
        "lstm",
        description="The kind of memory: lstm or gru. A gru has half the state and takes three quarters of the work.",
    )
    width: PositiveInt = Field(128, description="The number of outputs of the memory.")
    span: Annotated[int, Field(ge=2)] | None = Field(
        None,
        description="The most steps over which the memory keeps information before training, for tasks whose cues lie "
        "far back (arXiv:1804.11188). null: an untrained memory forgets within a few steps.",
    )

    @property
    def state_dim(self) -> int:
        """Numbers in the state."""
        return 2 * self.width if self.kind == "lstm" else self.width

    def split(self, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Split recorded states ``[B, M + A]`` into those of the memory ``[B, M]`` and previous actions ``[B, A]``."""
        memory, before = state.tensor_split((self.state_dim,), dim=1)
        return memory, before


class Memory(nn.Module):
    """An LSTM or a GRU whose state is one vector: of an LSTM its output and its cell, one after the other.

    It computes in float32 under autocast too, since rounding errors of a state would add up from step to step.

    Args:
        in_dim: size of one input, I.
        config: says W, the number of outputs, and S, the size of a state.
    """

    def __init__(self, in_dim: int, config: MemoryConfig) -> None:
        super().__init__()
        self.is_lstm = config.kind == "lstm"
        self.net = (nn.LSTM if self.is_lstm else nn.GRU)(in_dim, config.width, batch_first=True)
        self.width, self.state_dim = config.width, config.state_dim
        if config.span is not None:
            self._remember_for(config.span)

    @torch.no_grad()
    def _remember_for(self, span: int) -> None:
        """Draw the biases of the gates, so that each output of the memory forgets over 2 to ``span`` steps.

        A gate of bias ``log(k - 1)`` keeps ``1 - 1 / k`` of its value from step to step (Tallec and Ollivier,
        arXiv:1804.11188). The input gate of an LSTM has the opposite bias.
        """
        _, _, bias, other = self.net.all_weights[0]
        keeps = torch.empty(self.width).uniform_(1, max(span - 1, 1)).log()
        gates, others = (each.view(-1, self.width) for each in (bias, other))  # LSTM: i f g o; GRU: r z n.
        gates[1], others[1] = keeps, 0
        if self.is_lstm:
            gates[0], others[0] = -keeps, 0

    def forward(self, inputs: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs ``[B, T, I]`` and the states before them ``[B, S]`` to outputs ``[B, T, W]`` and the states after."""
        weights: list[torch.Tensor] = list(self.net.all_weights[0])
        if not torch.is_grad_enabled():
            inputs, state, weights = inputs.detach(), state.detach(), [weight.detach() for weight in weights]
        # On a CPU torch has two kernels of an LSTM, which round differently, and uses one of them only if gradients are
        # enabled. Here it is always used, so that a captured function, which is replayed with gradients enabled, gives
        # the same bits as an eager one.
        with torch.autocast(inputs.device.type, enabled=False), torch.enable_grad():
            parts = [part[None].contiguous() for part in state.chunk(state.shape[1] // self.width, dim=1)]
            settings = (True, 1, 0.0, self.training, False, True)  # Biases, layers, dropout, …, one way, B before T.
            if self.is_lstm:
                outputs, hidden, cell = torch.lstm(inputs.float(), parts, weights, *settings)
                return outputs, torch.cat((hidden[0], cell[0]), dim=1)
            outputs, hidden = torch.gru(inputs.float(), parts[0], weights, *settings)
            return outputs, hidden[0]

    def unroll(self, inputs: torch.Tensor, state: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
        """The states after each of the inputs ``[B, T, I]``, ``[B, T, S]``; the first W of their numbers are outputs.

        Where ``begins``, ``[B, T]`` bool, an episode begins, and the state before the input is zeros instead of the
        one that the input before has left. ``state`` ``[B, S]`` is the one before the first input. torch's kernel of
        whole sequences, which ``forward`` uses, is faster, but cannot begin anew within a sequence.
        """
        states: list[torch.Tensor] = []
        with torch.autocast(inputs.device.type, enabled=False):
            for step, begin in zip(inputs.float().unbind(dim=1), begins.unbind(dim=1), strict=True):
                state = state.masked_fill(begin[:, None], 0.0)
                if self.is_lstm:
                    state = torch.cat(torch.lstm_cell(step, state.chunk(2, dim=1), *self.net.all_weights[0]), dim=1)
                else:
                    state = torch.gru_cell(step, state, *self.net.all_weights[0])
                states.append(state)
        return torch.stack(states, dim=1)


class RecurrentEncoder(nn.Module):
    """Features of the observations so far: an encoder of each observation, and a memory over them.

    The memory sees the action before each observation too, as in R2D2 (Kapturowski et al. 2019); it sees no rewards,
    since an agent does not know them while it acts.

    Args:
        encoder: turns observations of N rows into features ``[N, F]``.
        n_features: F.
        action_dim: size of one action, A.
        config: of the memory.
    """

    def __init__(self, encoder: nn.Module, n_features: int, action_dim: int, config: MemoryConfig) -> None:
        super().__init__()
        self.encoder = encoder
        self.memory = Memory(n_features + action_dim, config)

    def forward(
        self, obs: Observed, action_before: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Observations of ``[B, T]`` rows, actions ``[B, T, A]`` and states ``[B, S]`` to ``[B, T, W]`` and states.

        An action of zeros says that there was none.
        """
        outputs, after = self.memory(self.join(obs, action_before), state)
        return outputs, after

    def join(self, obs: Observed, action_before: torch.Tensor) -> torch.Tensor:
        """The inputs of the memory, ``[B, T, F + A]``."""
        features = self.encoder(flatten_time(obs)).unflatten(0, action_before.shape[:2])  # [B, T, F]
        return torch.cat((features.float(), action_before), dim=2)


class RecurrentNetwork(nn.Module):
    """A ``RecurrentEncoder`` and a head over its features.

    Args:
        encoder: gives features ``[B, T, W]``.
        head: turns N rows of them, ``[N, W]``, into outputs ``[N, O]``.
    """

    def __init__(self, encoder: RecurrentEncoder, head: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(
        self, obs: Observed, action_before: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As ``RecurrentEncoder``, with outputs ``[B, T, O]`` instead of features."""
        features, after = self.encoder(obs, action_before, state)
        return self.head(features.flatten(0, 1)).unflatten(0, features.shape[:2]), after


SEQUENCES = "replay.view: {target: Sequences, params: {length: 40, burn_in: 10}}"


class LaneMemory(LaneState):
    """The state of each lane, such as that of an LSTM; zeros when an episode begins.

    An agent calls ``begin`` in its own ``begin``. Train and eval mode have separate states: in training in turns, one
    agent acts in both, and an evaluation comes between two steps of the same episode. Those of train mode are saved.
    """

    def __init__(self, *shape: int, device: torch.device | str = "cpu") -> None:
        self.shape, self._device = shape, device
        self._states: dict[bool, torch.Tensor] = {}

    def begin(self, begins: Array, lanes: Array | None = None, *, is_train: bool) -> None:
        """Clear the states where ``begins``, ``[n]`` bool, is True; those of all lanes if n has changed."""
        state = self._states.get(is_train)
        if lanes is not None:
            self._set(lanes[begins], 0.0, is_train)
        elif state is None or len(state) != len(begins):
            self._states[is_train] = torch.zeros(len(begins), *self.shape, dtype=torch.float32, device=self._device)
        else:
            where = torch.from_numpy(begins).to(self._device).view(-1, *(1 for _ in self.shape))
            self._states[is_train] = state.masked_fill(where, 0.0)

    def read(self, lanes: Array | None = None, *, is_train: bool) -> torch.Tensor:
        """The states ``[n, *shape]`` float32; they are not changed in place before the next call with ``lanes``."""
        return self._states[is_train] if lanes is None else self._reach(lanes, is_train)[torch.from_numpy(lanes)]

    def write(self, state: torch.Tensor, lanes: Array | None = None, *, is_train: bool) -> None:
        """Replace the states, ``[n, *shape]``."""
        if lanes is None:
            self._states[is_train] = state
        else:
            self._set(lanes, state, is_train)

    def _set(self, lanes: Array, values: torch.Tensor | float, is_train: bool) -> None:
        """Set the states of these lanes in place; there may be thousands of others."""
        if len(lanes):
            with torch.inference_mode():  # Outside, torch refuses to change a state that was written in this mode.
                self._reach(lanes, is_train)[torch.from_numpy(lanes)] = values

    def _reach(self, lanes: Array, is_train: bool) -> torch.Tensor:
        """The states of all lanes, with zeros for new ones among ``lanes``."""
        state = self._states.get(is_train, torch.zeros(0, *self.shape, dtype=torch.float32, device=self._device))
        if (more := capacity_for(lanes, len(state)) - len(state)) > 0:
            state = self._states[is_train] = torch.cat((state, state.new_zeros(more, *self.shape)))
        return state

    def collect(self) -> dict[str, torch.Tensor]:
        return {"state": self._states[True]} if True in self._states else {}

    def load(self, tensors: Mapping[str, torch.Tensor], prefix: str) -> None:
        state = tensors.get(f"{prefix}state")
        self._states = {} if state is None else {True: state.to(self._device).clone()}


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

    def _require_sequences(self, batch: Mapping[str, torch.Tensor]) -> None:
        """Check that a batch holds sequences, each within one episode.

        Raises:
            ConfigError: the batch does not, or the rows have no recurrent state.
        """
        agent = type(self).__name__
        if not {"mask", "warm", "first"} <= batch.keys():
            raise ConfigError(
                f"replay.view: {agent} has a memory and learns from sequences, but a batch has "
                f"{', '.join(sorted(batch))}; set {SEQUENCES}"
            )
        if "state" not in batch:
            raise ConfigError(
                f"replay: {agent} begins sequences in the state that it recorded, but rows have no 'state'"
            )
        if bool(batch["first"][:, 1:].any()):
            raise ConfigError(f"replay.view.params.across: {agent} learns from sequences of one episode; remove across")
