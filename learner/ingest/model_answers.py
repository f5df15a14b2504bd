"""The answers to ``GetModel``, each serialised once: every actor with the same model is sent the same bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from common.data import ModelVersion
from common.wire.chunk import checksum, parse_chunk, serialize_chunk
from common.wire.delta import make_delta
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import CHUNK_BYTES, UNARY_BYTES, version_to_pb
from learner.models.slots import Blob, ModelSlots


@dataclass(frozen=True)
class ModelAnswer:
    """A model as it is sent: whole, or as what changed since another.

    Args:
        n_bytes: of what is sent.
        messages: serialised ``GetModelResponse``.
    """

    version: ModelVersion
    published_at: float
    n_bytes: int
    messages: tuple[bytes, ...]

    @classmethod
    def of(cls, blob: Blob) -> ModelAnswer:
        """Copies the model once."""
        head = _head(blob.version, blob.data)
        return cls(blob.version, blob.published_at, len(blob.data), tuple(_messages(head, blob.data)))

    def since(self, base: ModelAnswer) -> ModelAnswer:
        """This model as what changed since ``base``, both whole; itself if that is no less."""
        data = self._data()
        delta = make_delta(base._data(), data)
        if len(delta) >= len(data):
            return self
        head = _head(self.version, data)
        head.base.CopyFrom(version_to_pb(base.version))
        return replace(self, n_bytes=len(delta), messages=tuple(_messages(head, memoryview(delta))))

    def _data(self) -> bytes:
        return b"".join(parse_chunk(message)[1] for message in self.messages)


class ModelAnswers:
    """The newest model, for actors with any model or none.

    Args:
        slots: read once a version.
        n_bases: so many models sent before are kept, to send who has one of them what changed since.
    """

    def __init__(self, slots: ModelSlots, n_bases: int) -> None:
        self._slots = slots
        self._sent: deque[ModelAnswer] = deque(maxlen=n_bases + 1)
        """Whole, the newest last."""
        self._deltas: dict[ModelVersion, ModelAnswer] = {}
        """To the newest, by what they are to be applied to."""

    def whole(self) -> ModelAnswer:
        """The newest model.

        Raises:
            AssertionError: there is none yet.
        """
        if not self._sent or self._sent[-1].version != self._slots.newest():
            answer = self._slots.read(ModelAnswer.of)
            assert answer is not None, "the first model is published before ingest starts"
            self._sent.append(answer)
            self._deltas.clear()
        return self._sent[-1]

    def since(self, have: ModelVersion) -> ModelAnswer:
        """What changed since ``have`` if that is kept; otherwise, and if that is no less, the whole model."""
        newest = self.whole()
        base = next((kept for kept in self._sent if kept.version == have), None)
        if base is None:
            return newest
        if have not in self._deltas:
            self._deltas[have] = newest.since(base)
        return self._deltas[have]


def _head(version: ModelVersion, model: bytes | memoryview) -> pb.GetModelResponse:
    return pb.GetModelResponse(version=version_to_pb(version), total_bytes=len(model), checksum=checksum(model))


def _messages(head: pb.GetModelResponse, data: memoryview) -> Iterator[bytes]:
    size = len(data) if len(data) <= UNARY_BYTES else CHUNK_BYTES
    for offset in range(0, len(data), size):
        head.offset = offset
        yield serialize_chunk(head, data[offset : offset + size])
