"""A whole actor against scripted learners: another run takes the place of its own, or the first model comes late."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
from safetensors.numpy import save

from actor.worker import Actor
from common.data import ModelVersion
from common.errors import CrossborderError
from common.wire.codec import schema_to_pb
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import version_to_pb
from common.wire.trust import Trust
from tests.actor.client.conftest import ScriptedLearner, Serve
from tests.actor.client.test_assembly import chunks
from tests.conftest import PATIENCE, wait_for
from tests.parts import counting_schema

VERSION = ModelVersion(2, 30)
CONFIG = (
    '{"env": {"target": "tests.parts:CountingEnv"}, "agent": {"target": "tests.parts:CheckingAgent"}, '
    '"push": {"n_buffer": 10}}'
)


def no_end(error: CrossborderError) -> int:
    raise AssertionError(f"the process would end: {error}")


class CountingLearner(ScriptedLearner):
    """Has the parts that count, and a model for them."""

    def __init__(self) -> None:
        joined = pb.JoinResponse(
            run_id="first",
            schema=schema_to_pb(counting_schema()),
            config_json=CONFIG,
            newest=version_to_pb(VERSION),
            limits=pb.Limits(max_rows=100, max_message_bytes=1 << 20),
        )
        super().__init__(joined, [chunks(version=VERSION, data=save({"steps": np.full(1, 30, np.float32)}))])


class ReplacedLearner(CountingLearner):
    """Breaks the stream at the first batch. Then another run is there, which takes everything.

    Args:
        says_stop: tell the actor to stop before the stream breaks.
    """

    def __init__(self, *, says_stop: bool = False) -> None:
        super().__init__()
        self._says_stop = says_stop
        self.run_ids = list[str]()
        """Of all answers to ``Join``."""
        self.dropped = 0

    def Join(self, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:  # noqa: N802
        self.run_ids.append(self.joined.run_id)
        return self.joined

    def PushItems(  # noqa: N802
        self, request_iterator: Iterator[pb.PushItemsRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.PushItemsResponse]:
        for request in request_iterator:
            if request.seq and self.joined.run_id == "first":
                self.joined.run_id = "second"
                yield pb.PushItemsResponse(stop=self._says_stop)
                context.abort(grpc.StatusCode.UNAVAILABLE, "the network is gone")
            self.dropped = request.report.dropped_items
            yield pb.PushItemsResponse(acked_seq=request.seq)


def test_an_actor_that_goes_over_to_another_run_reports_the_rows_that_it_dropped(serve: Serve) -> None:
    learner = ReplacedLearner()
    actor = Actor(f"127.0.0.1:{serve(learner)}", PATIENCE, Trust(), no_end)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(actor.run)
        wait_for(lambda: len(learner.run_ids) > 2 or running.done(), "it joins the other run as a new actor")
        actor.stop()
        running.result(PATIENCE)
    assert learner.dropped >= 10, "the first batch at least"
    assert set(learner.run_ids) == {"first", "second"}


def test_an_actor_that_has_been_told_to_stop_goes_over_to_no_other_run(serve: Serve) -> None:
    learner = ReplacedLearner(says_stop=True)
    assert Actor(f"127.0.0.1:{serve(learner)}", PATIENCE, Trust(), no_end).run().env_steps > 0
    assert learner.run_ids == ["first", "second"], "it has only looked whether its learner is back"


class LateLearner(CountingLearner):
    """Names its model only in the second answer to what an actor sends."""

    def __init__(self) -> None:
        super().__init__()
        self.joined.newest.Clear()
        self.has_batches = False

    def PushItems(  # noqa: N802
        self, request_iterator: Iterator[pb.PushItemsRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.PushItemsResponse]:
        for number, request in enumerate(request_iterator):
            self.has_batches |= request.seq > 0
            yield pb.PushItemsResponse(acked_seq=request.seq, newest=version_to_pb(VERSION) if number else None)


def test_a_first_model_is_waited_for_as_long_as_the_patience_lasts(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actor.worker.FIRST_MODEL_SECONDS", 0.0)
    learner = LateLearner()
    actor = Actor(f"127.0.0.1:{serve(learner)}", PATIENCE, Trust(), no_end)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(actor.run)
        wait_for(lambda: learner.has_batches or running.done(), "it acts")
        actor.stop()
        assert running.result(PATIENCE).env_steps > 0
