"""Writes a policy as an ONNX file, which runs without this project: ``pip install 'crossborder[export]'``."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import onnx
import onnxscript  # noqa: F401 - torch's exporter needs it; if it is missing, the error comes here and not during an export
import torch

from common.errors import ConfigError, PluginError
from common.leaves import by_path, empty_leaves
from common.spaces import name_of
from learner.shared.durable import replace_bytes

OPSET = 18


def export_policy(
    policy: torch.nn.Module, observations: gymnasium.Space[Any], metadata: Mapping[str, str], path: Path
) -> dict[str, str]:
    """Write a policy as ONNX: input ``obs`` ``[batch, *shape]``, output ``action`` ``[batch, *action_shape]``.

    Structured observations have an input for each leaf, ``obs/PATH``, and structured actions an output,
    ``action/PATH``.

    Args:
        policy: maps observations to actions, see ``Agent.policy``.
        observations: the space of the observations as the agent sees them; inputs have its shapes and dtypes.
        metadata: becomes the ``metadata_props`` of the ONNX model.
        path: of the file, which is written whole or not at all.

    Returns:
        ``inputs`` and ``outputs``: the name, dtype and shape of each, as text.

    Raises:
        PluginError: the policy cannot be exported for batches of any size.
        ConfigError: the file cannot be written.
    """
    blank = {path: torch.from_numpy(leaf) for path, leaf in by_path(empty_leaves(observations, 2)).items()}
    try:
        with _muting_torch():
            model = _to_onnx(policy.eval(), blank)
    except RuntimeError as error:
        raise PluginError(f"the policy cannot be exported: {_first_cause(error)}") from error
    onnx.helper.set_model_props(model, dict(metadata))
    onnx.checker.check_model(model, full_check=True)
    try:
        replace_bytes(path, model.SerializeToString())
    except OSError as error:
        raise ConfigError(f"--output {path}: cannot be written: {error.strerror}") from error
    return {"inputs": _describe(model.graph.input), "outputs": _describe(model.graph.output)}


def _describe(values: Iterable[onnx.ValueInfoProto]) -> str:
    """The name, dtype and shape of each value, such as ``obs float32 [batch, 4]``."""
    texts = []
    for value in values:
        tensor = value.type.tensor_type
        shape = ", ".join(size.dim_param or str(size.dim_value) for size in tensor.shape.dim)
        texts.append(f"{value.name} {onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)} [{shape}]")
    return "; ".join(texts)


def _to_onnx(policy: torch.nn.Module, leaves: Mapping[str, torch.Tensor]) -> onnx.ModelProto:
    """Export in two steps: ``torch.onnx.export`` alone silently fixes the batch size to that of ``leaves``."""
    batch = {0: torch.export.Dim("batch")}
    is_leaf = "" in leaves
    obs = leaves[""] if is_leaf else dict(leaves)
    shapes: Any = (batch if is_leaf else dict.fromkeys(leaves, batch),)
    with torch.no_grad():
        actions = policy(obs)
    paths = list(actions) if isinstance(actions, dict) else [""]
    program = torch.export.export(policy, (obs,), dynamic_shapes=shapes, strict=False)
    exported = torch.onnx.export(
        program,
        input_names=[name_of("obs", path) for path in leaves],
        output_names=[name_of("action", path) for path in paths],
        dynamic_shapes=shapes,
        opset_version=OPSET,
        dynamo=True,
        verbose=False,
    )
    assert exported is not None, "only the exporter without dynamo gives None"
    return exported.model_proto


@contextmanager
def _muting_torch() -> Iterator[None]:
    """Silence torch's exporter: it warns that torchvision is missing and of deprecations in torch's own code."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.filterwarnings("ignore", "# The axis name: batch will not be used", UserWarning)
            yield
    finally:
        logger.setLevel(level)


def _first_cause(error: BaseException) -> str:
    """The first line of the error at the end of the chain of causes."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).partition("\n")[0]
