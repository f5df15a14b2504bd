"""Building the user's parts for the learner, on their device and in their precision; whether settings and rows fit."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import numpy as np
import torch

from common.agents.torch_device import require_device
from common.config.run_config import RunConfig
from common.config.server_config import MESSAGE_BYTES, MOST_MESSAGE_BYTES
from common.config.trainer_config import ComputingPrecision
from common.data import ENVELOPE_BYTES, INTERVENED, Schema, to_json
from common.errors import ConfigError, PluginError, show
from common.hints import nearest
from common.interfaces import Agent, TrainingState
from common.parts import Parts, build_parts
from common.plugins.part_loading import naming_fault

MOVED: Final = (
    "model_info() gave other tensors after opt(): it must return live tensors, always of the same names, shapes "
    "and storage; change them in place (copy_, add_)"
)
"""Said of an agent whose tensors are not where they were: actors would act with the former ones for ever."""
LOADED_ELSEWHERE: Final = (
    "model_info() gave other tensors after load_params(): load into the live ones (copy_, load_state_dict)"
)
"""Said of an agent that has replaced its tensors by those of a checkpoint: actors would not get the latter."""
UNSAVABLE: Final = ("", "__metadata__")
"""Names of tensors that a file of tensors cannot hold."""
LOOK_SECONDS: Final = 1.0
"""The time between two looks at an agent's tensors."""


def build_learner_parts(config: RunConfig, *, epsilon: float = 0.0, n_envs: int = 0) -> Parts:
    """Build environments and agent for the learner.

    Args:
        config: of the run.
        epsilon: exploration of the agent, if the learner acts itself.
        n_envs: number of environments, if the learner acts itself; 0: none.

    Raises:
        CrossborderError: torch cannot use the device, a part cannot be built, a batch of rows does not fit into a
            message, or a setting names a column that the rows do not have.
    """
    require_device(config.trainer.device)
    parts = build_parts(config, seed=config.seed, epsilon=epsilon, device=config.trainer.device, n_envs=n_envs)
    check_tensors(parts.agent)
    message_bytes(config, parts.schema)  # It refuses rows that are too large.
    _check_unusual_values(config, parts.schema)
    _check_intervened(config, parts.schema)
    return parts


def check_tensors(agent: Agent) -> None:
    """Check what an agent publishes and saves, since the first checkpoint comes only after a minute of training.

    Raises:
        PluginError: it gives something else than tensors by their names, or values that JSON cannot hold; a
            ``FaultError`` if it raised an exception.
    """
    with naming_fault("agent: model_info(), save_params() or training_state() failed"):
        state = agent.training_state()
        published, saved = agent.model_info(), agent.save_params()
    if not isinstance(state, TrainingState):
        raise PluginError(f"agent.training_state: expected a crossborder.TrainingState, found {state!r:.80}")
    to_json(state.values, "agent.training_state: values")
    given = {"model_info": published, "save_params": saved, "training_state": state.tensors}
    for method, found in given.items():
        for name, value in found.items() if isinstance(found, Mapping) else [(None, found)]:
            if not (isinstance(name, str) and isinstance(value, torch.Tensor) and value.layout == torch.strided):
                raise PluginError(f"agent.{method}: expected dense torch tensors by their names, found {show(found)}")
            if name in UNSAVABLE or value.is_meta:
                expected = "tensors with values" if value.is_meta else f"other names than {UNSAVABLE}"
                raise PluginError(f"agent.{method}: expected {expected}, found '{name}': {show(value)}")


def places_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, torch.Size, torch.dtype]]:
    """Where tensors are. Keep the tensors alive until you compare, or new tensors may get their addresses."""
    return {name: (value.data_ptr(), value.shape, value.dtype) for name, value in tensors.items()}


def find_moved(places: Mapping[str, object], tensors: Mapping[str, torch.Tensor]) -> str | None:
    """The first tensor that is not where it was (``places_of``), or was not there; None if all are there."""
    found = places_of(tensors)
    return next((name for name in sorted({*places, *found}) if places.get(name) != found.get(name)), None)


class LiveTensors:
    """Checks now and then that an agent still has the tensors whose values are published."""

    def __init__(self, agent: Agent, name: str) -> None:
        self._agent, self._name, self._tensors = agent, name, agent.model_info()
        self._places = places_of(self._tensors)
        self._due = -math.inf

    def require(self, *, now: bool = False, otherwise: str = MOVED) -> None:
        """Look, if the last look is ``LOOK_SECONDS`` ago or ``now`` is True: a look takes 0.1 ms.

        Args:
            now: look now.
            otherwise: what the error says of an agent that has other tensors.

        Raises:
            PluginError: the agent has other tensors.
        """
        if not now and time.monotonic() < self._due:
            return
        self._due = time.monotonic() + LOOK_SECONDS
        if (moved := find_moved(self._places, self._agent.model_info())) is not None:
            raise PluginError(f"agent: {self._name}: '{moved}': {otherwise}")


def message_bytes(config: RunConfig, schema: Schema) -> int:
    """The most bytes of one message from an actor: a batch of ``push.n_buffer`` rows fits.

    Raises:
        ConfigError: such a batch takes more bytes than a message may have.
    """
    needed = config.push.n_buffer * schema.row_bytes + ENVELOPE_BYTES
    if needed > MOST_MESSAGE_BYTES:
        raise ConfigError(
            f"push.n_buffer: {config.push.n_buffer} rows of {schema.row_bytes} bytes take messages of up to "
            f"{needed} bytes, expected at most {MOST_MESSAGE_BYTES}"
        )
    return max(MESSAGE_BYTES, needed)


def _check_unusual_values(config: RunConfig, schema: Schema) -> None:
    for name, how in config.server.unusual_values.items():
        is_number = not isinstance(how, str)
        known = schema.float_columns if is_number else schema.bounded_columns
        if name not in known:
            kind = "of floats" if is_number else "with bounds"
            raise ConfigError(f"server.unusual_values: expected a column {kind}, found '{name}'{nearest(name, known)}")
        if not isinstance(how, str) and how > (most := float(np.finfo(known[name].dtype).max)):
            raise ConfigError(f"server.unusual_values.{name}: expected at most {most:g}, found {how:g}")


def _check_intervened(config: RunConfig, schema: Schema) -> None:
    for name, source in config.replay.sources.items():
        if source.interventions and INTERVENED not in schema.columns:
            columns = ", ".join(schema.by_name)
            raise ConfigError(
                f"replay.sources.{name}.interventions: expected rows with the column '{INTERVENED.name}', found "
                f"{columns}; the step processor leaves it out"
            )


def computing_in(precision: ComputingPrecision, device: str) -> AbstractContextManager[object]:
    """A context, which can be entered again and again, in which an agent's ``opt`` computes in ``precision``.

    With bfloat16, matrix products and convolutions run in bfloat16, forwards and backwards. Parameters, gradients and
    optimiser states stay float32, and so do the operations that torch's autocast runs in float32.

    With rounded_products all tensors stay float32. Products and convolutions round their inputs: on a CPU to bfloat16,
    which has 8 significant bits, on a GPU to TF32, which has 11. They add up in float32.

    Raises:
        ConfigError: the device cannot compute in this precision.
    """
    if precision == "float32":
        return nullcontext()
    if precision == "rounded_products":
        return _RoundingProducts(torch.device(device).type)
    try:
        # The optimiser changes parameters within one opt, so autocast must not cache their casts to bfloat16.
        return torch.autocast(torch.device(device).type, torch.bfloat16, cache_enabled=False)
    except RuntimeError as error:
        raise ConfigError(f"trainer.precision: {device} cannot compute in {precision}: {error}") from error


class _RoundingProducts:
    """A context in which float32 products round their inputs."""

    def __init__(self, kind: str) -> None:
        backends: Any = torch.backends
        on_gpu = kind == "cuda"
        self._kinds = (
            (backends.cuda.matmul, backends.cudnn.conv) if on_gpu else (backends.mkldnn.matmul, backends.mkldnn.conv)
        )
        self._rounded = "tf32" if on_gpu else "bf16"

    def __enter__(self) -> None:
        self._before = [kind.fp32_precision for kind in self._kinds]
        for kind in self._kinds:
            kind.fp32_precision = self._rounded

    def __exit__(self, *exception: object) -> None:
        for kind, before in zip(self._kinds, self._before, strict=True):
            kind.fp32_precision = before
