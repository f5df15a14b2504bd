"""Questions to a learner that is not joined; ``tests/actor/commands/test_doctor.py`` asks them all of a real one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import grpc
import pytest

from actor.client.probe import Probe
from common.errors import LearnerUnreachableError, ProtocolMismatchError, RefusedError
from common.wire.codec import schema_to_pb
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import PROTOCOL_VERSION
from common.wire.trust import Trust
from tests.actor.client.conftest import ScriptedLearner, Serve
from tests.actor.client.test_assembly import DATA, chunks
from tests.actor.client.test_connector import JOINED, SCHEMA


class AnsweringLearner(ScriptedLearner):
    """Answers ``Check`` too, and counts the bytes that it is sent."""

    def __init__(self, answers: list[list[pb.GetModelResponse]], protocol_version: int = PROTOCOL_VERSION) -> None:
        super().__init__(JOINED, answers)
        self.n_bytes, self._version = 0, protocol_version

    def Check(self, request: pb.CheckRequest, context: grpc.ServicerContext) -> pb.CheckResponse:  # noqa: N802
        self.n_bytes += len(request.payload)
        return pb.CheckResponse(
            protocol_version=self._version,
            unix_seconds=1003.5,
            actors=2,
            max_actors=5,
            schema=schema_to_pb(SCHEMA),
            config_json="{}",
            limits=JOINED.limits,
        )


@contextmanager
def probing(port: int) -> Iterator[Probe]:
    """A probe whose clock says 1000 as it asks, and 1001 as it is answered."""
    times = iter([1000.0, 1001.0])
    with closing(Probe(f"127.0.0.1:{port}", Trust(), lambda: next(times))) as probe:
        yield probe


def test_an_answer_tells_the_round_trip_and_how_far_the_learners_clock_is_ahead(serve: Serve) -> None:
    with probing(serve(AnsweringLearner([]))) as probe:
        answer = probe.ask()
    assert (answer.round_trip, answer.clock_offset) == (1.0, 3.0)
    assert (answer.actors, answer.max_actors, answer.schema, answer.config_json) == (2, 5, SCHEMA, "{}")


def test_a_learner_of_another_protocol_version_is_told_apart(serve: Serve) -> None:
    with (
        probing(serve(AnsweringLearner([], protocol_version=1))) as probe,
        pytest.raises(ProtocolMismatchError, match=f"the learner speaks 1, this host {PROTOCOL_VERSION}"),
    ):
        probe.ask()


def test_a_learner_that_is_not_there_is_unreachable(free_port: int) -> None:
    with probing(free_port) as probe, pytest.raises(LearnerUnreachableError, match="no answer: UNAVAILABLE"):
        probe.ask()


def test_an_upload_fits_the_learners_messages(serve: Serve) -> None:
    learner = AnsweringLearner([])
    with probing(serve(learner)) as probe:
        assert probe.upload(2000) > 0
    assert learner.n_bytes == 8 * 1000


def test_a_download_tells_the_size_of_the_model_and_refuses_an_answer_without_one(serve: Serve) -> None:
    with probing(serve(AnsweringLearner([chunks(), chunks()[1:]]))) as probe:
        assert probe.download()[0] == len(DATA)
        with pytest.raises(RefusedError, match="expected a chunk at offset 0"):
            probe.download()


def test_a_download_from_a_learner_without_a_model_says_so(serve: Serve) -> None:
    learner = AnsweringLearner([[pb.GetModelResponse(not_modified=True)]])
    with probing(serve(learner)) as probe, pytest.raises(RefusedError, match="the learner has no model yet"):
        probe.download()
