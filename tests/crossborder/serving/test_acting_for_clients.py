"""An acting service as an actor of a run: real learners, services and clients. ``tests.chaos.serving`` kills them."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import numpy as np
import pytest

from learner.shared.actor_table import ActorState
from tests.conftest import Command, MakeConfig, free_port, wait_for
from tests.crossborder.serving.counting_client import SPEC
from tests.crossborder.serving.services import Caller, refusal
from tests.e2e.test_counting import train_in_thread

Start = Callable[..., Command]
AGENT = {"target": "tests.parts:CheckingLaneAgent"}
SPACING = 100_000
"""Between the first tags of clients."""


def serve(start: Start, learner: str, port: int, *more: str) -> Command:
    words = ["--listen", f"127.0.0.1:{port}", "--set", "max_wait_ms=1"]
    return start("policy-server", "--learner", learner, *words, *more)


def play(start: Start, port: int, number: int, lanes: int = 2) -> Command:
    words = [f"127.0.0.1:{port}", str(number * SPACING), str(lanes)]
    return start("tests.crossborder.serving.counting_client", *words)


def test_a_drained_service_hands_over_its_rows_and_a_cordoned_one_may_not_join(
    make_config: MakeConfig, start: Start
) -> None:
    port, trainer, push = free_port(), {"max_opts": 10**9}, {"n_buffer": 10_000, "flush_seconds": None}
    config = make_config(agent=AGENT, trainer=trainer, push=push)
    with train_in_thread(config, local_actors=0) as (server, _):
        service = serve(start, server.ingest.address, port)
        client = play(start, port, 1)
        wait_for(lambda: server.actor_table["env_steps"][0] > 300, "the client acts")
        assert server.buffer.inserted == 0
        drained = start("learner-server", "drain", "--learner", server.ingest.address, "--all")
        assert drained.wait() == 0, drained.output()
        assert service.wait() == 0, service.output()
        assert server.actor_table["state"][0] == ActorState.LEFT
        assert server.buffer.inserted == server.actor_table["env_steps"][0]
        again = serve(start, server.ingest.address, port, "--patience", "1")
        assert again.wait() != 0
        assert "cordoned" in again.output()
        assert client.process.poll() is None, client.output()


def test_a_client_whose_values_no_row_may_have_is_refused_and_the_others_go_on(
    make_config: MakeConfig, start: Start
) -> None:
    port, calm = free_port(), {"trainer": {"max_opts": 10**9}, "replay": {"samples_per_insert": 1.6}}
    config = make_config(agent=AGENT, push={"n_buffer": 16, "flush_seconds": 0.05}, **calm)
    with train_in_thread(config, local_actors=0) as (server, _):
        service = serve(start, server.ingest.address, port)
        client = play(start, port, 1)
        wait_for(lambda: server.buffer.inserted > 100, "the client acts")
        with Caller(f"127.0.0.1:{port}", SPEC) as caller:
            stream = caller.open()
            stream.step(1, np.zeros((1, 3), np.float32))
            with pytest.raises(grpc.RpcError) as error:
                stream.step(2, np.zeros((1, 3), np.float32), reward=[2.0**40])
        assert refusal(error.value)[1:] == (
            "bad_message",
            "reward: expected numbers from -1e+12 to 1e+12, found 1099511627776.0",
        )
        last = server.buffer.inserted
        wait_for(lambda: server.buffer.inserted > last + 500, "rows of the other client come")
        for each in (service, client):
            assert each.process.poll() is None, each.output()


def test_clients_hear_that_their_run_has_reached_its_end(make_config: MakeConfig, start: Start) -> None:
    port = free_port()
    with train_in_thread(make_config(agent=AGENT, trainer={"max_opts": 300}), local_actors=0) as (server, _):
        service = serve(start, server.ingest.address, port)
        client = play(start, port, 1)
        assert client.wait() == 0, client.output()
    assert service.wait() == 0, service.output()
