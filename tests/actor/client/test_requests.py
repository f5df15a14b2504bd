from __future__ import annotations

import numpy as np
import pytest

from actor.client.actor_traces import ActorTraces
from actor.client.join_answer import JoinAnswer, read_join
from actor.client.requests import (
    GROUP_BYTES,
    GROUP_BYTES_OF_PICTURES,
    Requests,
    WaitingBatch,
    choose_group_rows,
)
from actor.spool import MessageGroup, Spool
from actor.stat import ActorCounters, ActorFigures
from common.data import ENVELOPE_BYTES, MAX_EPISODES, NO_MODEL, BufferedItems, Column, ModelVersion, Schema
from common.lanes.lanes import Round
from common.wire.codec import buffer, encode, schema_to_pb
from common.wire.compression import compress
from common.wire.large_field import Request
from common.wire.pb import crossborder_pb2 as pb
from tests.frames import SCHEMA as PICTURES
from tests.frames import picture_rows

PLAIN = Schema((Column("n", "<i8"),))
LARGE = 1 << 28


def answer(schema: Schema, *, max_rows: int = 1000, max_message_bytes: int = LARGE, zstd: bool = True) -> JoinAnswer:
    return read_join(
        pb.JoinResponse(
            schema=schema_to_pb(schema),
            config_json='{"env": {"target": "a:b"}, "agent": {"target": "c:d"}}',
            limits=pb.Limits(
                max_rows=max_rows,
                max_message_bytes=max_message_bytes,
                compressions=[pb.COMPRESSION_ZSTD] if zstd else [],
            ),
        )
    )


def received(request: Request) -> pb.PushItemsRequest:
    return pb.PushItemsRequest.FromString(request.serialize())


class Sender:
    """Counters, a spool and the requests made of them."""

    def __init__(self, schema: Schema, *, group_rows: int = 100, zstd: bool = True) -> None:
        self.schema, self.counters = schema, ActorCounters()
        self.spool: Spool[WaitingBatch] = Spool(1 << 30, 100, group_rows=group_rows)
        self.requests = Requests(answer(schema, zstd=zstd), self.counters, self.spool, ActorTraces())

    def buffered(self, *numbers: int) -> BufferedItems:
        n = np.array(numbers)
        return buffer(self.schema, picture_rows(n) if self.schema.has_pictures else {"n": n}, len(n))

    def batch(self, *numbers: int, behaviour: ModelVersion = NO_MODEL) -> WaitingBatch:
        return self.requests.make_batch(self.buffered(*numbers), behaviour)

    def put(self, *numbers: int) -> None:
        batch = self.batch(*numbers)
        assert self.spool.put(batch, batch.n_bytes, batch.group_rows, 0)

    def end_episode(self, total: float, *, success: bool | None) -> None:
        """Count an episode of one step."""
        one = np.array([total]), np.array([True]), np.array([False]), np.array([0.0])
        self.counters.add_episodes(Round(*one, ended=np.array([0]), returns=[total], lengths=[1], success=[success]))
        self.counters.env_steps += 1

    def message(self, *batches: WaitingBatch, seq: int = 1, after_drop: bool = False) -> pb.PushItemsRequest:
        return received(self.requests.make_message(7, seq, MessageGroup([*batches], 0, 0.0, after_drop)))

    def heartbeat(self, *, leaving: bool = False) -> pb.PushItemsRequest:
        return received(self.requests.make_heartbeat(5, leaving=leaving))


def test_batches_that_share_a_message_are_encoded_together_and_keep_their_order() -> None:
    sender = Sender(PLAIN)
    batches = [sender.batch(1, 2, behaviour=ModelVersion(1, 5)), sender.batch(3, behaviour=ModelVersion(1, 6))]
    request = sender.message(*batches, seq=4, after_drop=True)
    assert (request.incarnation, request.seq, request.rows, request.schema_hash) == (7, 4, 3, PLAIN.hash)
    assert request.payload == encode(PLAIN, {"n": np.array([1, 2, 3])}, 3)
    assert request.behaviour == pb.ModelVersion(incarnation=1, opt_steps=5), "it chose the first action"
    assert request.compression == pb.COMPRESSION_UNSPECIFIED, "only pictures are worth compressing"
    assert request.after_drop
    assert not sender.message(*batches).after_drop


def test_pictures_are_compressed_at_once_while_the_learner_is_away_and_as_they_are_sent_while_it_is_there() -> None:
    sender = Sender(PICTURES)
    away = sender.batch(0)
    expected = compress(encode(PICTURES, picture_rows(np.array([0])), 1))
    assert (away.buffered, away.payload, away.n_bytes) == (None, expected, len(expected))
    sender.spool.connect()
    there = sender.batch(1)
    assert there.buffered is not None
    assert there.n_bytes == there.buffered.n_bytes
    for batch in (away, there):
        assert sender.message(batch).compression == pb.COMPRESSION_ZSTD
    assert sender.message(away).payload == expected


def test_a_learner_that_does_not_take_compressed_payloads_gets_none() -> None:
    sender = Sender(PICTURES, zstd=False)
    request = sender.message(sender.batch(0))
    assert request.compression == pb.COMPRESSION_UNSPECIFIED
    assert request.payload == encode(PICTURES, picture_rows(np.array([0])), 1)


def test_a_compressed_batch_travels_by_itself_also_where_the_learner_comes_back_with_higher_limits() -> None:
    sender = Sender(PICTURES, group_rows=2)
    sender.put(0, 1)
    sender.put(2)
    sender.spool.group_rows = 100
    epoch = sender.spool.connect()
    sender.put(3)
    sender.put(4)
    sender.spool.close()
    rows = []
    while (unsent := sender.spool.next_unsent(epoch, 0)) is not None:
        rows.append(sender.requests.make_message(1, *unsent).head.rows)
    assert rows == [2, 1, 2]


def test_a_message_has_the_episodes_of_all_its_batches_and_the_newest_where_they_are_too_many() -> None:
    sender = Sender(PLAIN)
    batches = []
    for n in range(3):
        for episode in range(MAX_EPISODES // 2):
            sender.end_episode(n * MAX_EPISODES + episode, success=episode == 0)
        batches.append(sender.batch(n))
    report = sender.message(*batches).report
    assert len(report.episode_returns) == len(report.episode_lengths) == MAX_EPISODES
    assert (report.episode_returns[0], report.episode_returns[-1]) == (MAX_EPISODES, 2.5 * MAX_EPISODES - 1)
    assert list(np.flatnonzero(report.episode_successes)) == [0, MAX_EPISODES // 2]
    assert not sender.heartbeat().report.episode_returns, "episodes are counted once, with their batch"


def test_a_report_has_the_figures_of_the_moment_it_is_sent() -> None:
    sender = Sender(PLAIN)
    sender.put(1)
    sender.end_episode(1.0, success=None)
    sender.counters.reconnects = 3
    sender.counters.note_env_error("it broke")
    first, second = (sender.heartbeat(leaving=leaving) for leaving in (False, True))
    assert (first.incarnation, first.seq, first.report.env_steps, first.report.reconnects) == (5, 0, 1, 3)
    assert first.report.spool_bytes == sender.spool.n_bytes > 0
    assert (first.report.leaving, second.report.leaving) == (False, True)
    assert (first.report.env_error, second.report.env_error) == ("it broke", ""), "an error is told once"
    assert first.report.building
    sender.requests.is_building = False
    assert not sender.heartbeat().report.building


@pytest.mark.parametrize("figure", vars(ActorFigures()))
def test_every_figure_of_an_actor_travels_in_the_field_of_its_name(figure: str) -> None:
    sender = Sender(PLAIN)
    sender.put(1)
    if figure != "spool_bytes":
        setattr(sender.counters, figure, 17)
    expected = sender.spool.n_bytes if figure == "spool_bytes" else 17
    assert getattr(sender.heartbeat().report, figure) == expected


def test_every_report_has_the_newest_score_of_an_actor_that_evaluates() -> None:
    sender = Sender(PLAIN)
    assert not sender.heartbeat().report.HasField("score")
    for opt_steps in (100, 200):
        model = pb.ModelVersion(incarnation=1, opt_steps=opt_steps)
        score = pb.Score(model=model, score=3.5, record={"eval_return": 3.5}, seconds=0.25)
        sender.requests.score = score
        assert [sender.heartbeat().report.score for _ in range(2)] == [score] * 2


@pytest.mark.parametrize(
    ("schema", "limits", "rows"),
    [
        (PLAIN, {"max_rows": 1 << 30}, GROUP_BYTES // 8),
        (PLAIN, {"max_rows": 50}, 50),
        (PLAIN, {"max_message_bytes": ENVELOPE_BYTES + 80}, 10),
        (PLAIN, {"max_message_bytes": ENVELOPE_BYTES}, 1),
        (PICTURES, {"max_rows": 1 << 30}, GROUP_BYTES_OF_PICTURES // PICTURES.row_bytes),
        (PICTURES, {"max_message_bytes": ENVELOPE_BYTES + 3 * PICTURES.row_bytes - 1}, 2),
    ],
)
def test_batches_share_a_message_up_to_the_size_that_pays_and_the_learners_limits(
    schema: Schema, limits: dict[str, int], rows: int
) -> None:
    joined = answer(schema, **limits)  # type: ignore[arg-type]
    assert choose_group_rows(joined) == rows <= joined.max_batch_rows
