"""The states that an agent with a memory keeps between the steps of an episode."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from common.data import Array
from common.leaves import capacity_for


class LaneMemory:
    """The state of each lane, such as that of an LSTM; zeros when an episode begins.

    An agent calls ``begin`` in its own ``begin``. Train and eval mode have separate states: in training in turns, one
    agent acts in both, and an evaluation comes between two steps of the same episode. ``NetworkAgent`` saves the states
    of train mode.

    ``lanes`` names the lanes that the rows of a call belong to, ``[k]`` int64, all different; None: all n lanes. A lane
    with a new number is added, and begins with zeros.

    Args:
        shape: of one lane's state.
        device: where the states live.
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
            self._states[is_train] = torch.zeros(len(begins), *self.shape, device=self._device)
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
        state = self._states.get(is_train, torch.zeros(0, *self.shape, device=self._device))
        if (more := capacity_for(lanes, len(state)) - len(state)) > 0:
            state = self._states[is_train] = torch.cat((state, state.new_zeros(more, *self.shape)))
        return state

    def collect(self) -> dict[str, torch.Tensor]:
        """The states of train mode, for a resumed run; empty if there are none."""
        return {"state": self._states[True]} if True in self._states else {}

    def load(self, tensors: Mapping[str, torch.Tensor], prefix: str) -> None:
        """Take the states that ``collect`` gave, found under ``prefix``."""
        state = tensors.get(f"{prefix}state")
        self._states = {} if state is None else {True: state.to(self._device).clone()}
