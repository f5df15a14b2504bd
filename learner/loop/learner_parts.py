"""Building the user's parts for the learner, and checking that settings and rows fit."""

from __future__ import annotations

import numpy as np
import torch

from common.config.run_config import RunConfig
from common.data import ENVELOPE_BYTES, INTERVENED, Schema
from common.errors import ConfigError
from common.hints import nearest
from common.parts import Parts, build_parts


def require_device(text: str) -> torch.device:
    """The device of this name.

    Args:
        text: ``trainer.device`` of the configuration.

    Raises:
        ConfigError: it names no device, or one that torch cannot use here.
    """
    try:
        device = torch.device(text)
    except RuntimeError as error:
        raise ConfigError(f"trainer.device: expected a device such as cpu, cuda or cuda:1, found '{text}'") from error
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ConfigError(f"trainer.device: expected one of {count} GPUs that torch finds here, found {device}")
    try:
        torch.empty(0, device=device)
    except (AssertionError, ImportError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"trainer.device: expected a device that torch can use here, found {device}: {reason}"
        ) from error
    return device


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
    _check_message_size(config, parts.schema)
    _check_clipped_columns(config, parts.schema)
    _check_bounded_columns(config, parts.schema)
    _check_intervened(config, parts.schema)
    return parts


def _check_message_size(config: RunConfig, schema: Schema) -> None:
    needed = config.push.n_buffer * schema.row_bytes + ENVELOPE_BYTES
    if needed > config.server.max_message_bytes:
        raise ConfigError(
            f"push.n_buffer: {config.push.n_buffer} rows of {schema.row_bytes} bytes take messages of up to "
            f"{needed} bytes, above server.max_message_bytes ({config.server.max_message_bytes})"
        )


def _check_clipped_columns(config: RunConfig, schema: Schema) -> None:
    for name, bound in config.server.clip_nonfinite.items():
        column = schema.float_columns.get(name)
        if column is None:
            hint = nearest(name, schema.float_columns)
            raise ConfigError(f"server.clip_nonfinite: expected a column of floats, found '{name}'{hint}")
        most = float(np.finfo(column.dtype).max)
        if bound > most:
            raise ConfigError(f"server.clip_nonfinite.{name}: expected at most {most:g}, found {bound:g}")


def _check_bounded_columns(config: RunConfig, schema: Schema) -> None:
    for name in config.server.out_of_bounds:
        if name not in schema.bounded_columns:
            hint = nearest(name, schema.bounded_columns)
            raise ConfigError(f"server.out_of_bounds: expected a column with bounds, found '{name}'{hint}")


def _check_intervened(config: RunConfig, schema: Schema) -> None:
    for name, source in config.replay.sources.items():
        if source.interventions and INTERVENED not in schema.columns:
            columns = ", ".join(schema.by_name)
            raise ConfigError(
                f"replay.sources.{name}.interventions: expected rows with the column '{INTERVENED.name}', found "
                f"{columns}; the step processor leaves it out"
            )
