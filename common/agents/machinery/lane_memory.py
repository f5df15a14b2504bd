"""The states that an agent with a memory keeps between the steps of an episode."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from common.data import Array


class LaneMemory:
    """The state of each lane, such as that of an LSTM; zeros when an episode begins.

    An agent calls ``begin`` in its own ``begin``. Train and eval mode have separate states: in training in turns, one
    agent acts in both, and an evaluation comes between two steps of the same episode. ``NetworkAgent`` saves the states
    of train mode.

    Args:
        shape: of one lane's state.
        device: where the states live.
    """

    def __init__(self, *shape: int, device: torch.device | str = "cpu") -> None:
        self.shape, self._device = shape, device
        self._states: dict[bool, torch.Tensor] = {}

    def begin(self, lanes: Array, *, is_train: bool) -> None:
        """Clear the states of the lanes ``[n]`` bool, or of all lanes if n has changed."""
        state = self._states.get(is_train)
        if state is None or len(state) != len(lanes):
            self._states[is_train] = torch.zeros(len(lanes), *self.shape, device=self._device)
        else:
            begins = torch.from_numpy(lanes).to(self._device).view(-1, *(1 for _ in self.shape))
            self._states[is_train] = state.masked_fill(begins, 0.0)

    def read(self, *, is_train: bool) -> torch.Tensor:
        """The states of n lanes, ``[n, *shape]`` float32; they are never changed in place."""
        return self._states[is_train]

    def write(self, state: torch.Tensor, *, is_train: bool) -> None:
        """Replace the states of all lanes, ``[n, *shape]``."""
        self._states[is_train] = state

    def collect(self) -> dict[str, torch.Tensor]:
        """The states of train mode, for a resumed run; empty if there are none."""
        return {"state": self._states[True]} if True in self._states else {}

    def load(self, tensors: Mapping[str, torch.Tensor], prefix: str) -> None:
        """Take the states that ``collect`` gave, found under ``prefix``."""
        state = tensors.get(f"{prefix}state")
        self._states = {} if state is None else {True: state.to(self._device).clone()}
