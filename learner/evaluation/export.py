"""A policy as an ONNX file, which runs without this project: ``pip install 'crossborder[export]'``."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnx
import onnxscript  # noqa: F401 - torch's exporter needs it; here it is missed at once
import torch

from common.errors import ConfigError, PluginError

OPSET = 18


def export_policy(
    policy: torch.nn.Module, observations: gymnasium.Space[Any], metadata: Mapping[str, str], path: Path
) -> None:
    """Write a policy as ONNX: input ``obs`` ``[batch, *shape]``, output ``action`` ``[batch, *action_shape]``.

    Args:
        policy: gives actions for observations, see ``Agent.policy``.
        observations: their space; the input has its dtype.
        metadata: becomes the model's ``metadata_props``.
        path: of the file.

    Raises:
        PluginError: ONNX cannot express the policy for batches of any size.
        ConfigError: the file cannot be written.
    """
    blank = torch.from_numpy(np.zeros((2, *(observations.shape or ())), observations.dtype))
    try:
        with _without_remarks():
            model = _to_onnx(policy.eval(), blank)
    except RuntimeError as error:
        raise PluginError(f"the policy cannot be exported: {_reason(error)}") from error
    onnx.helper.set_model_props(model, dict(metadata))
    onnx.checker.check_model(model, full_check=True)
    try:
        path.write_bytes(model.SerializeToString())
    except OSError as error:
        raise ConfigError(f"--output {path}: cannot be written: {error.strerror}") from error


def _to_onnx(policy: torch.nn.Module, obs: torch.Tensor) -> onnx.ModelProto:
    """In two steps, because ``torch.onnx.export`` alone falls back to the batch size of ``obs`` without a word."""
    shapes = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(policy, (obs,), dynamic_shapes=shapes, strict=False)
    exported = torch.onnx.export(
        program,
        input_names=["obs"],
        output_names=["action"],
        dynamic_shapes=shapes,
        opset_version=OPSET,
        dynamo=True,
        verbose=False,
    )
    assert exported is not None, "only the exporter without dynamo gives None"
    return exported.model_proto


@contextmanager
def _without_remarks() -> Iterator[None]:
    """Torch's exporter says that torchvision is missing and that torch uses what torch will remove."""
    remarks = logging.getLogger("torch.onnx")
    level = remarks.level
    remarks.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        remarks.setLevel(level)


def _reason(error: BaseException) -> str:
    """The first line of what it all began with."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).partition("\n")[0]
