"""Makes a model of the chunks that a learner sends: a safetensors file, whole or from a delta, and its tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from common.data import NO_MODEL, Array, Model
from common.errors import CheckpointError, RefusedError
from common.wire.compression import apply_delta
from common.wire.large_field import checksum, parse_chunk
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import version_from_pb
from common.wire.tensor_file import read_tensors

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ModelFile:
    """A model and the safetensors file in which it came.

    Args:
        data: uint8 [n]; the model's tensors are views of it.
    """

    model: Model
    data: Array = field(repr=False)


MAX_MODEL_BYTES: Final = 4 << 30
"""The largest model that is received while the agent, and so the size of its tensors, is unknown."""
_HEADER_BYTES: Final = 1 << 20
"""A bound on the header of a model's file, without its entries for the tensors."""
_TENSOR_HEADER_BYTES: Final = 1024


def max_file_bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    """An upper bound on the size of a file of this ``model_info``; the learner's elements may be twice as wide."""
    n_bytes = sum(tensor.numel() * tensor.element_size() + _TENSOR_HEADER_BYTES for tensor in tensors.values())
    return _HEADER_BYTES + 2 * n_bytes


def assemble(
    messages: Iterable[bytes], base: ModelFile | None = None, max_bytes: int = MAX_MODEL_BYTES
) -> ModelFile | None:
    """Make a model from its chunks; None for *not modified*.

    Args:
        messages: of one answer, serialised ``GetModelResponse``.
        base: the model that a delta may refer to; it is not changed.
        max_bytes: of the model's file; a larger one is refused before it is received.

    Raises:
        ValueError: chunks are missing, empty, out of order or broken, a delta is to another model, the file is not what
            was announced or no safetensors file, or more than ``max_bytes`` were announced.
    """
    first, data = _join_chunks(messages, max_bytes)
    if first.not_modified:
        return None
    version = version_from_pb(first.version)
    try:
        if first.HasField("base"):
            data = _apply_delta(base, first.base, data)
        if len(data) != first.total_bytes:
            raise ValueError(f"expected {first.total_bytes} bytes, found {len(data)}")
        if (found := checksum(data.data)) != first.checksum:
            raise ValueError(f"expected checksum {first.checksum:016x}, found {found:016x}")
        return ModelFile(Model(version, read_tensors(data)), data)
    except (RefusedError, ValueError) as error:
        raise ValueError(f"model {version}: {error}") from error


def _join_chunks(messages: Iterable[bytes], max_bytes: int) -> tuple[pb.GetModelResponse, Array]:
    """The first chunk, and the data of all chunks in one buffer, uint8 [n]."""
    first, file, size = pb.GetModelResponse(), np.empty(0, np.uint8), 0
    for message in messages:
        chunk, data = parse_chunk(message)
        if chunk.not_modified:
            return chunk, file
        if not data:  # A learner could send empty chunks for ever.
            raise ValueError(f"model: expected data in the chunk at offset {chunk.offset}, found none")
        if size == 0:
            first, file = chunk, _allocate(chunk.total_bytes, max_bytes)
        if chunk.offset != size:
            raise ValueError(f"model: expected a chunk at offset {size}, found one at {chunk.offset}")
        if size + len(data) > len(file):
            raise ValueError(f"model: expected {len(file)} bytes, found {size + len(data)}")
        file.data[size : size + len(data)] = data
        size += len(data)
    if size == 0:
        raise ValueError("model: expected chunks, found none")
    return first, file[:size]


def _allocate(n_bytes: int, max_bytes: int) -> Array:
    """A buffer, uint8 [n_bytes]. Its memory comes only as it fills, so an announcement alone costs none."""
    if n_bytes > max_bytes:
        raise ValueError(f"model: expected up to {max_bytes} bytes for this actor's agent, found {n_bytes} announced")
    try:
        return np.empty(n_bytes, np.uint8)
    except (MemoryError, ValueError) as error:
        raise ValueError(f"model: no memory for {n_bytes} bytes") from error


def _apply_delta(base: ModelFile | None, expected: pb.ModelVersion, delta: Array) -> Array:
    """The file that a delta makes from ``base``. All uint8.

    Raises:
        RefusedError: it is no delta to a file of this size.
        ValueError: it is a delta to another model than ``base``.
    """
    have, needed = NO_MODEL if base is None else base.model.version, version_from_pb(expected)
    if base is None or have != needed:
        raise ValueError(f"expected a delta to {have}, found one to {needed}")
    return apply_delta(base.data, delta.tobytes())


def shapes_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of an agent (``Agent.model_info``)."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def require_fitting(model: Model, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that a model has the tensors of this actor's agent.

    Raises:
        CheckpointError: naming a tensor, and both shapes.
    """
    found = {name: values.shape for name, values in model.params.items()}
    for name in sorted(found.keys() | shapes.keys()):
        if found.get(name) != shapes.get(name):
            own, sent = (list(each[name]) if name in each else "none" for each in (shapes, found))
            raise CheckpointError(
                f"the learner's model does not fit the agent of this actor: {name}: expected {own}, found {sent}; the "
                "environment has another action space here, or agent or network differ: install the same code on both "
                "hosts"
            )
