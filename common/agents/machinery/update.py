"""How an agent computes updates and actions: eagerly, or captured, that is without the Python around each operation.

For a small network the Python of autograd, the optimiser and ``nn.Module`` costs more than the arithmetic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import nn

from common.agents.averaging import can_be_captured
from common.agents.machinery.capturing import Traced, trace
from common.agents.machinery.gradient_step import Batch
from common.agents.machinery.optimizers import AdamConfig, OptimizerConfig
from common.data import Array, Leaves
from common.errors import PluginError, RankLostError
from common.settings import Settings

log = logging.getLogger(__name__)
Results = dict[str, torch.Tensor]
"""Scalars for the record by name, and the TD errors ``[B]`` for a prioritised buffer."""


class UpdateConfig(Settings):
    """The settings that all agents with networks share; see ``NetworkAgent.captures``."""

    update: Literal["eager", "captured"] | None = Field(
        None,
        description="How updates are computed. eager: operation by operation; captured: the operations are recorded "
        "once and replayed, which is faster and gives the same results; on a CPU, acting is captured too. null: "
        "captured, but eager with your own network. Set captured for your own network if its Python code does the "
        "same in each call.",
    )
    optimizer: OptimizerConfig = Field(
        AdamConfig(), description="The optimiser of all networks, by kind: adam, adamw or rmsprop."
    )

    @field_validator("optimizer", mode="before")
    @classmethod
    def _adam_without_a_kind(cls, optimizer: object) -> object:
        return {"kind": "adam", **optimizer} if isinstance(optimizer, dict) else optimizer

    def has_own_network(self) -> bool:
        """Whether a network is a user's own, whose Python may do something else in each call."""
        return False


class Update:
    """A function that learns from a batch: columns ``[B, *shape]`` in, named results out.

    While the function runs, networks are in torch's train mode, and in eval mode afterwards. So batch normalisation
    gathers statistics and dropout drops in an update, while acting stays a fixed function. Target networks stay in
    eval mode. On a CPU denormal numbers, below 1.2e-38 in float32, count as zero: some processors compute 100 times as
    slowly with them, and the mean gradient of a unit that no longer learns becomes one.

    A captured update runs the function's Python in its first two calls only: the first is eager, since optimisers make
    their state in it, and the second is traced. Later calls replay the traced operations. A batch of other columns,
    shapes or dtypes is traced again. A value that is no tensor, such as a count that the function keeps, stays as it
    was during tracing, so capture only Python that does the same in each call; ``crossborder.check_agent`` compares
    captured updates with eager ones.

    A call that is not for the record returns no scalars, and a captured one does not compute them either.

    Args:
        function: changes networks and optimisers in place.
        nets: the agent's networks by name; the name of a target network ends in ``_tgt``.
        captured: whether the function is captured.
    """

    def __init__(
        self, function: Callable[[Batch], Results], nets: Mapping[str, nn.Module], *, captured: bool = False
    ) -> None:
        self._function, self._nets, self.captured = function, nets, captured
        self.forget_traces()

    def forget_traces(self) -> None:
        """Begin again with an eager call: the traces refer to states that the optimisers no longer have."""
        self._is_warm = False
        self._replays: dict[tuple[object, ...], Callable[[Batch], Results]] = {}

    def __call__(self, batch: Batch, *, recorded: bool = True) -> Results:
        torch.set_flush_denormal(True)  # On Intel's processors denormal numbers make Adam's step nine times as long.
        try:
            return self._compute(batch, recorded)
        finally:
            torch.set_flush_denormal(False)

    def _compute(self, batch: Batch, recorded: bool) -> Results:
        if not self.captured or not self._is_warm or not can_be_captured():
            self._is_warm = True
            return self._run(batch, recorded)
        kind = (recorded, *batch, *((column.shape, column.dtype) for column in batch.values()))
        replay = self._replays.get(kind)
        if replay is not None:
            return replay(batch)
        results, self._replays[kind] = self._trace(batch, recorded)
        return results

    def _run(self, batch: Batch, recorded: bool) -> Results:
        """Call the function, its networks in train mode; without ``recorded``, leave scalars out of its results."""
        learning = [net for name, net in self._nets.items() if not name.endswith("_tgt")]
        for net in learning:
            net.train()
        try:
            results = self._function(batch)
        finally:
            for net in learning:
                net.eval()
        return results if recorded else {name: result for name, result in results.items() if result.dim()}

    def _trace(self, batch: Batch, recorded: bool) -> tuple[Results, Callable[[Batch], Results]]:
        """Compute the results for this batch, and make the function that replays them for others of its kind."""
        computed: list[Results] = []

        def run(*columns: torch.Tensor) -> list[torch.Tensor]:
            computed.append(self._run(dict(zip(batch, columns, strict=True)), recorded))
            return list(computed[0].values())

        try:
            replay: Traced = trace(run, list(batch.values()))
        except RankLostError:
            raise  # The other ranks are gone: an eager update would fail too.
        except Exception:
            log.warning("updates stay eager, as they cannot be captured:", exc_info=True)
            # With results, tracing failed after the update was computed: computing it again would learn twice.
            results = computed[0] if computed else self._run(batch, recorded)
            return results, lambda again: self._run(again, recorded)
        names = tuple(computed[0])
        return computed[0], lambda again: dict(zip(names, replay(*again.values()), strict=True))


class Inference:
    """A function of n observations that takes and gives arrays, for use in ``Agent.sample``.

    If it is captured, its first call for a shape, dtype and order in memory is traced, and later calls replay the
    traced operations. The results are those of eager calls bit for bit: random numbers are drawn again, and parameters
    have their present values. Only a call whose tracing fails draws random numbers twice.

    If an agent acts for some of its lanes, it gives them as ``lanes``, ``[n]``. Their number may differ from call to
    call, so their rows are padded to 1, 2, 4, 8, … rows, and there are only so many traces.

    Args:
        function: from observations, a tensor or for structured spaces a dict of tensors, to a tensor; changes nothing
            but the state of random generators.
        device: where the function computes; it is captured only on a CPU.
        captured: whether the function is captured; see ``Update`` for the functions that can be.
        noise: draws random numbers for these lanes, ``[n]`` to ``[n, M]``. In calls with ``lanes`` they are the
            function's second argument, a tensor. None: the function draws no random numbers.
    """

    def __init__(
        self,
        function: Callable[..., torch.Tensor],
        device: torch.device,
        *,
        captured: bool = False,
        noise: Callable[[Array], Array] | None = None,
    ) -> None:
        self._function, self._device, self._noise = function, device, noise
        self.captured = captured and device.type == "cpu"
        self._replays: dict[object, Traced] = {}
        self._last: Leaves = {}  # Plain lanes give the same array in each round.
        self._given: list[torch.Tensor] = []
        self._kind: object = None

    def __call__(self, obs: Leaves, lanes: Array | None = None) -> Array:
        if lanes is not None or isinstance(obs, dict) or obs is not self._last:
            names = tuple(obs) if isinstance(obs, dict) else None
            columns = list(obs.values()) if isinstance(obs, dict) else [obs]
            if lanes is not None:
                columns = [_pad(column, len(lanes)) for column in (*columns, *self._draw(lanes))]
            self._last, self._given = obs if lanes is None else {}, [torch.from_numpy(column) for column in columns]
            self._kind = (names, len(columns), *((each.shape, each.strides, each.dtype) for each in columns))
        replay = self._replays.get(self._kind)
        if replay is not None:
            result = replay(*self._given)[0]
        else:
            with torch.inference_mode():
                result = self._compute(tuple(obs) if isinstance(obs, dict) else None)
        found: Array = result.numpy(force=True)
        return found if lanes is None else found[: len(lanes)]

    def _draw(self, lanes: Array) -> Sequence[Array]:
        return () if self._noise is None else (self._noise(lanes),)

    def _compute(self, names: tuple[str, ...] | None) -> torch.Tensor:
        """Compute the result; if captured, remember how to replay it for other observations of this kind.

        ``names`` are the paths of the leaves; None: there is one leaf, the observations themselves.
        """

        def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
            n = 1 if names is None else len(names)
            obs = tensors[0] if names is None else dict(zip(names, tensors[:n], strict=True))
            results.append(self._function(obs, *tensors[n:]))
            return results

        results: list[torch.Tensor] = []
        if self.captured:
            try:
                self._replays[self._kind] = trace(run, self._given)
            except Exception:
                log.warning("actions are computed eagerly, as they cannot be replayed:", exc_info=True)
                self.captured = False
                results.clear()
        return results[0] if results else run(*(leaf.to(self._device) for leaf in self._given))[0]


def _pad(rows: Array, n: int) -> Array:
    """Pad n rows with copies of the last one, to a number of rows that is a power of two."""
    if len(rows) != n:
        raise PluginError(f"agent.sample: expected observations for {n} lanes, one row each, found {len(rows)} rows")
    padded = np.empty((1 << (n - 1).bit_length(), *rows.shape[1:]), rows.dtype)
    padded[:n], padded[n:] = rows, rows[-1]
    return padded
