"""The messages of an actor's stream: rows with a report, and heartbeats, which are a report alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from actor.client.actor_traces import ActorTraces
from actor.client.join_answer import JoinAnswer
from actor.spool import ALONE, MessageGroup, Spool
from actor.stat import ActorCounters, Episodes
from common.data import MAX_EPISODES, BufferedItems, ModelVersion
from common.wire.codec import encode_together
from common.wire.compression import compress_together
from common.wire.large_field import Request
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import version_to_pb

GROUP_BYTES: Final = 2 << 20
"""Batches that wait travel in one message of up to this size. At rows of 534 bytes, messages of 2.2 MB carry twice as
many rows a second as messages of 0.27 MB."""
GROUP_BYTES_OF_PICTURES: Final = 8 << 20
"""The same limit for compressed pictures, in bytes before compression, which leaves a hundredth of them."""


@dataclass(frozen=True)
class WaitingBatch:
    """Rows that wait in the spool, either in ``buffered`` or in ``payload``, and the figures that travel with them."""

    rows: int
    buffered: BufferedItems | None
    """Rows as they were pushed, encoded together with those of other batches when they are sent."""
    payload: bytes
    """Rows that were encoded and compressed before they were put into the spool: they travel by themselves."""
    behaviour: ModelVersion
    """The model that chose their actions."""
    episodes: Episodes
    """Episodes that ended since the batch before."""
    trace_parent: str
    """Empty if the batch is not traced."""
    games: Counter[tuple[int, int, int]]
    """Games against the pool that ended since the batch before, see ``ActorCounters.take_games``."""

    @property
    def n_bytes(self) -> int:
        """Memory that the rows take."""
        return len(self.payload) if self.buffered is None else self.buffered.n_bytes

    @property
    def group_rows(self) -> int:
        """Rows that the batch adds to a message of several batches."""
        return ALONE if self.buffered is None else self.rows


def choose_group_rows(answer: JoinAnswer) -> int:
    """The most rows in a message of several batches, by the limits in the learner's answer to ``Join``."""
    is_compressed = answer.schema.has_pictures and answer.takes_zstd
    n_bytes = GROUP_BYTES_OF_PICTURES if is_compressed else GROUP_BYTES
    return max(1, min(answer.max_batch_rows, n_bytes // answer.schema.row_bytes))


class Requests:
    """Makes batches of rows, and ``PushItemsRequest`` messages of batches.

    Args:
        answer: to the first Join: schema, and whether the learner takes compressed payloads.
        counters: for reports.
        spool: its size is reported.
        traces: of the batches.
    """

    def __init__(
        self, answer: JoinAnswer, counters: ActorCounters, spool: Spool[WaitingBatch], traces: ActorTraces
    ) -> None:
        self._schema, self._counters, self._spool, self._traces = answer.schema, counters, spool, traces
        self._compresses = answer.schema.has_pictures and answer.takes_zstd
        self.is_building = True
        """Whether the actor still builds its parts."""
        self.score: pb.Score | None = None
        """The newest score of an evaluating actor. Every report has it, so no broken connection can lose it."""

    def make_batch(self, buffered: BufferedItems, behaviour: ModelVersion) -> WaitingBatch:
        """Make a batch for the spool, with the episodes that ended since the batch before.

        Pictures are compressed now if the learner is away, since they may have to be kept for long. While the learner
        is there, batches are compressed together as they are sent, which is faster and leaves less.
        """
        episodes, trace = self._counters.take_episodes(), self._traces.hand_over(buffered.rows, behaviour)
        games = self._counters.take_games()
        if self._compresses and not self._spool.connected:
            return WaitingBatch(buffered.rows, None, self._encode([buffered])[0], behaviour, episodes, trace, games)
        return WaitingBatch(buffered.rows, buffered, b"", behaviour, episodes, trace, games)

    def _encode(self, buffered: Sequence[BufferedItems]) -> Sequence[bytes]:
        """The payload in pieces."""
        pieces = encode_together(self._schema, buffered)
        return (compress_together(pieces),) if self._compresses else pieces

    def make_message(self, incarnation: int, seq: int, group: MessageGroup[WaitingBatch]) -> Request:
        """Make the message of a group, whose number is ``seq``.

        The report has the present figures, even if the batches are sent again: the learner keeps the report that came
        last, so older figures would set it back.
        """
        batches, report = group.messages, self._report()
        report.episode_returns.extend([value for batch in batches for value in batch.episodes.returns][-MAX_EPISODES:])
        report.episode_lengths.extend([value for batch in batches for value in batch.episodes.lengths][-MAX_EPISODES:])
        successes = [value for batch in batches for value in batch.episodes.successes]
        report.episode_successes.extend(successes[-MAX_EPISODES:])
        games = sum((batch.games for batch in batches), Counter[tuple[int, int, int]]())
        for (player, opponent, result), count in [*games.items()][-MAX_EPISODES:]:
            report.pool_games.add(player=player, opponent=opponent, result=result, count=count)
        buffered = [batch.buffered for batch in batches if batch.buffered is not None]
        assert len(buffered) in (0, len(batches)), "a compressed batch travels by itself"
        trace_parent = next((batch.trace_parent for batch in batches if batch.trace_parent), "")
        if trace_parent:
            self._traces.note_sent(trace_parent, seq)
        head = pb.PushItemsRequest(
            incarnation=incarnation,
            seq=seq,
            schema_hash=self._schema.hash,
            rows=sum(batch.rows for batch in batches),
            behaviour=version_to_pb(batches[0].behaviour),
            report=report,
            compression=pb.COMPRESSION_ZSTD if self._compresses else pb.COMPRESSION_UNSPECIFIED,
            after_drop=group.after_drop,
            trace_parent=trace_parent,
        )
        return Request(head, self._encode(buffered) if buffered else (batches[0].payload,))

    def make_heartbeat(self, incarnation: int, *, leaving: bool = False) -> Request:
        """Make a message without rows; with ``leaving`` it says goodbye."""
        return Request(pb.PushItemsRequest(incarnation=incarnation, report=self._report(leaving=leaving)))

    def _report(self, *, leaving: bool = False) -> pb.Report:
        counters = self._counters
        counters.spool_bytes = self._spool.n_bytes
        return pb.Report(
            **counters.figures(),
            env_error=counters.take_env_error(),
            building=self.is_building,
            leaving=leaving,
            score=self.score,
        )
