"""The messages of an actor's stream: items with a report, and heartbeats, which are a report alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from actor.client.join_answer import JoinAnswer
from actor.spool import ALONE, Spool
from actor.stat import ActorCounters, Episodes
from common.data import ENVELOPE_BYTES, MAX_EPISODES, ModelVersion
from common.wire.codec import encode_together
from common.wire.compression import compress
from common.wire.frames import BufferedItems
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import version_to_pb

GROUP_BYTES: Final = 256 << 10
"""Batches that wait travel in one message of up to this size; larger messages do not make a stream any faster."""
GROUP_BYTES_OF_FRAMES: Final = 2 << 20
"""The same limit for items with frames, before compression, which makes frames a hundred times smaller."""


@dataclass(frozen=True)
class WaitingBatch:
    """Items that wait in the spool, either in ``buffered`` or in ``payload``, and the figures that travel with them."""

    rows: int
    buffered: BufferedItems | None
    """Items as they were pushed, encoded together with those of other batches when they are sent."""
    payload: bytes
    """Items that were encoded and compressed before they were put into the spool: they travel by themselves."""
    behaviour: ModelVersion
    """The model that chose their first action."""
    episodes: Episodes
    """Episodes that ended since the batch before."""

    @property
    def n_bytes(self) -> int:
        """Memory that the items take."""
        return len(self.payload) if self.buffered is None else self.buffered.n_bytes

    @property
    def group_rows(self) -> int:
        """Rows that the batch adds to a message of several batches."""
        return ALONE if self.buffered is None else self.rows


def choose_group_rows(answer: JoinAnswer) -> int:
    """The most rows in a message of several batches, by the limits in the learner's answer to ``Join``."""
    schema, frame = answer.schema, answer.schema.frame
    room = answer.max_message_bytes - ENVELOPE_BYTES
    if frame is None:
        likely = GROUP_BYTES // schema.row_bytes
    else:
        likely = GROUP_BYTES_OF_FRAMES // (schema.packed_row_bytes + frame.row_bytes)  # Most rows add one frame.
    return max(1, min(answer.max_rows, likely, room // schema.max_packed_bytes))


class Requests:
    """Makes batches of items, and ``PushItemsRequest`` messages of batches.

    Args:
        answer: to the first Join: schema, and whether the learner takes compressed payloads.
        counters: for reports.
        spool: its size is reported.
    """

    def __init__(self, answer: JoinAnswer, counters: ActorCounters, spool: Spool[WaitingBatch]) -> None:
        self._schema, self._counters, self._spool = answer.schema, counters, spool
        self._compresses = answer.schema.frame is not None and answer.takes_zstd
        self.is_building = True
        """Whether the actor still builds its parts."""

    def make_batch(self, buffered: BufferedItems, behaviour: ModelVersion) -> WaitingBatch:
        """Make a batch for the spool, with the episodes that ended since the batch before.

        Frames are compressed now if the learner is away, since they may have to be kept for long. While the learner is
        there, batches are compressed together as they are sent, which is faster and leaves less.
        """
        episodes = self._counters.take_episodes()
        if self._compresses and not self._spool.connected:
            return WaitingBatch(buffered.rows, None, self._encode([buffered]), behaviour, episodes)
        return WaitingBatch(buffered.rows, buffered, b"", behaviour, episodes)

    def _encode(self, buffered: Sequence[BufferedItems]) -> bytes:
        payload = encode_together(self._schema, buffered)
        return compress(payload) if self._compresses else payload

    def make_message(self, incarnation: int, seq: int, batches: Sequence[WaitingBatch]) -> pb.PushItemsRequest:
        """Make the message with number ``seq``.

        The report has the present figures, even if the batches are sent again: the learner keeps the report that came
        last, so older figures would set it back.
        """
        report = self._report()
        report.episode_returns.extend([value for batch in batches for value in batch.episodes.returns][-MAX_EPISODES:])
        report.episode_lengths.extend([value for batch in batches for value in batch.episodes.lengths][-MAX_EPISODES:])
        successes = [value for batch in batches for value in batch.episodes.successes]
        report.episode_successes.extend(successes[-MAX_EPISODES:])
        buffered = [batch.buffered for batch in batches if batch.buffered is not None]
        assert len(buffered) in (0, len(batches)), "a compressed batch travels by itself"
        return pb.PushItemsRequest(
            incarnation=incarnation,
            seq=seq,
            schema_hash=self._schema.hash,
            rows=sum(batch.rows for batch in batches),
            payload=self._encode(buffered) if buffered else batches[0].payload,
            behaviour=version_to_pb(batches[0].behaviour),
            report=report,
            compression=pb.COMPRESSION_ZSTD if self._compresses else pb.COMPRESSION_UNSPECIFIED,
        )

    def make_heartbeat(self, incarnation: int, *, leaving: bool = False) -> pb.PushItemsRequest:
        """Make a message without items; with ``leaving`` it says goodbye."""
        return pb.PushItemsRequest(incarnation=incarnation, report=self._report(leaving=leaving))

    def _report(self, *, leaving: bool = False) -> pb.Report:
        counters = self._counters
        counters.spool_bytes = self._spool.n_bytes
        return pb.Report(
            **counters.figures(), env_error=counters.take_env_error(), building=self.is_building, leaving=leaving
        )
