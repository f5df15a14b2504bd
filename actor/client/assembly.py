"""A model put together from what the learner sent: whole, or as what changed since the one before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from actor.client.tensors import tensors_of
from common.chunk import taken_apart
from common.data import NO_MODEL, Array, Model
from common.delta import restored
from common.errors import RefusedError
from common.pb import crossborder_pb2 as pb
from common.rpc import checksum, version_from_pb


@dataclass(frozen=True)
class ModelFile:
    """A model and the safetensors file that it came as.

    Args:
        data: uint8 [n]; the model's tensors are views of it.
    """

    model: Model
    data: Array = field(repr=False)


def assemble(messages: Iterable[bytes], base: ModelFile | None = None) -> ModelFile | None:
    """A model from its chunks; None for *not modified*.

    Args:
        messages: of one answer, serialised ``GetModelResponse``.
        base: what they may be a delta to; it stays as it is.

    Raises:
        ValueError: chunks are missing, out of order, broken, a delta to another model, or not what was announced.
    """
    first, data = _joined(messages)
    if first.not_modified:
        return None
    version = version_from_pb(first.version)
    try:
        if first.HasField("base"):
            data = _patched(base, first.base, data)
        _check(first, data)
        return ModelFile(Model(version, tensors_of(data)), data)
    except (RefusedError, ValueError) as error:
        raise ValueError(f"model {version}: {error}") from error


def _joined(messages: Iterable[bytes]) -> tuple[pb.GetModelResponse, Array]:
    """The first chunk and the data of all, uint8, in one buffer.

    Raises:
        ValueError: chunks are missing, out of order, broken, or hold more than was announced.
    """
    first, file, size = pb.GetModelResponse(), np.empty(0, np.uint8), 0
    for message in messages:
        chunk, data = taken_apart(message)
        if size == 0:
            first, file = chunk, _room(chunk.total_bytes)
        if chunk.offset != size:
            raise ValueError(f"model: expected a chunk at offset {size}, found one at {chunk.offset}")
        if size + len(data) > len(file):
            raise ValueError(f"model: expected {len(file)} bytes, found {size + len(data)}")
        file.data[size : size + len(data)] = data
        size += len(data)
    if size == 0 and not first.not_modified:
        raise ValueError("model: expected chunks, found none")
    return first, file[:size]


def _room(n_bytes: int) -> Array:
    """uint8 [n_bytes]; memory is taken only as it is filled.

    Raises:
        ValueError: there is not so much.
    """
    try:
        return np.empty(n_bytes, np.uint8)
    except (MemoryError, ValueError) as error:
        raise ValueError(f"model: no memory for {n_bytes} bytes") from error


def _patched(base: ModelFile | None, expected: pb.ModelVersion, delta: Array) -> Array:
    """The file that a delta makes of ``base``. All uint8.

    Raises:
        RefusedError: it is no delta to a file of this size.
        ValueError: it is a delta to another model than ``base``.
    """
    have, needed = NO_MODEL if base is None else base.model.version, version_from_pb(expected)
    if base is None or have != needed:
        raise ValueError(f"expected a delta to {have}, found one to {needed}")
    return restored(base.data, delta.tobytes())


def _check(first: pb.GetModelResponse, file: Array) -> None:
    """See that a file is what was announced.

    Raises:
        ValueError: it is not.
    """
    if len(file) != first.total_bytes:
        raise ValueError(f"expected {first.total_bytes} bytes, found {len(file)}")
    if (found := checksum(file.data)) != first.checksum:
        raise ValueError(f"expected checksum {first.checksum:016x}, found {found:016x}")
