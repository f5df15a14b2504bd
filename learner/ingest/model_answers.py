"""The answers to ``GetModel``, each serialised once: every actor that has the same model gets the same bytes."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Final

from common.data import NO_MODEL, ModelVersion
from common.shared.slots import Blob, ModelSlots
from common.wire.compression import make_delta
from common.wire.large_field import checksum, serialize_chunk
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import CHUNK_BYTES, UNARY_BYTES, version_to_pb

KEPT_MODELS: Final = 8
"""Earlier models that are kept for deltas. While an actor fetches a model over a thin link, some newer ones may be
published; each takes the memory of a whole model."""
MAX_KNOWN_MODELS: Final = 4096
"""Versions whose time of publication is remembered."""


@dataclass(frozen=True)
class ModelAnswer:
    """A model as it is sent: whole, or as the delta from another model.

    Args:
        version: of the model.
        n_bytes: of the model or the delta.
        messages: serialised ``GetModelResponse``, one after the other.
        chunks: the part of the model or the delta that each message ends with, as views of the messages.
    """

    version: ModelVersion
    n_bytes: int
    messages: tuple[bytes, ...]
    chunks: tuple[memoryview, ...]

    @classmethod
    def of(cls, blob: Blob) -> ModelAnswer:
        """The answer with a whole model, which is copied once."""
        messages, chunks = _serialize(_head(blob.version, blob.data), blob.data)
        return cls(blob.version, len(blob.data), messages, chunks)

    def since(self, base: ModelAnswer) -> ModelAnswer:
        """This model as the delta from ``base``; both are whole. This answer itself if the delta is not smaller."""
        model = b"".join(self.chunks)
        delta = make_delta(b"".join(base.chunks), model)
        if len(delta) >= len(model):
            return self
        head = _head(self.version, model)
        head.base.CopyFrom(version_to_pb(base.version))
        messages, chunks = _serialize(head, memoryview(delta))
        return replace(self, n_bytes=len(delta), messages=messages, chunks=chunks)


class ModelAnswers:
    """The newest model, for actors with any model or none.

    Args:
        slots: each version is read from them once.
        n_bases: number of earlier models that are kept, so that actors that have one can get a delta.
    """

    def __init__(self, slots: ModelSlots, n_bases: int) -> None:
        self._slots = slots
        self._whole: deque[ModelAnswer] = deque(maxlen=n_bases + 1)
        """Whole models, the newest last."""
        self._deltas: dict[ModelVersion, ModelAnswer] = {}
        """Deltas to the newest model, by the version of their base."""
        self._began = time.monotonic()
        self._published: deque[tuple[ModelVersion, float]] = deque(maxlen=MAX_KNOWN_MODELS)
        """Versions, ascending, and when they were published."""

    def whole(self) -> ModelAnswer:
        """The newest model.

        Raises:
            AssertionError: there is none yet.
        """
        if not self._whole or self._whole[-1].version != self._slots.newest():
            answer = self._slots.read(ModelAnswer.of)
            assert answer is not None, "the first model is published before ingest starts"
            self._whole.append(answer)
            self._deltas.clear()
        return self._whole[-1]

    def since(self, have: ModelVersion) -> ModelAnswer:
        """The delta from ``have`` if that model is kept and the delta is smaller; otherwise the whole newest model."""
        newest = self.whole()
        base = next((kept for kept in self._whole if kept.version == have), None)
        if base is None:
            return newest
        if have not in self._deltas:
            self._deltas[have] = newest.since(base)
        return self._deltas[have]

    def note_newest(self) -> None:
        """Note when the newest model was published; called a few times a second.

        Actors of this host ask for no model: they read the slots. So the answers do not say which models there were.
        """
        known = self._published[-1][0] if self._published else NO_MODEL
        if self._slots.newest() <= known:
            return
        newest = self._slots.read(lambda blob: (blob.version, blob.published_at))
        assert newest is not None, "the slots have had a model since the look at ``newest``"
        self._published.append(newest)

    def published_at(self, version: ModelVersion) -> float:
        """The time at which a model that an actor may have was published, on the host's monotonic clock.

        A model that was not noted gets the time of the next noted model. For a version above the newest, which
        only an actor of an unknown later life has, the start of this process is returned.
        """
        self.note_newest()
        at = bisect_left(self._published, version, key=itemgetter(0))
        return self._published[at][1] if at < len(self._published) else self._began


def _head(version: ModelVersion, model: bytes | memoryview) -> pb.GetModelResponse:
    return pb.GetModelResponse(version=version_to_pb(version), total_bytes=len(model), checksum=checksum(model))


def _serialize(head: pb.GetModelResponse, data: memoryview) -> tuple[tuple[bytes, ...], tuple[memoryview, ...]]:
    """The messages that carry ``data``, and the views of their data."""
    size = len(data) if len(data) <= UNARY_BYTES else CHUNK_BYTES
    messages, chunks = [], []
    for offset in range(0, len(data), size):
        head.offset = offset
        part = data[offset : offset + size]
        message = serialize_chunk(head, part)
        messages.append(message)
        chunks.append(memoryview(message)[len(message) - len(part) :])  # ``serialize_chunk`` puts the data last.
    return tuple(messages), tuple(chunks)
