from __future__ import annotations

from contextlib import closing

import pytest

from common.errors import LearnerUnreachableError, RefusedError
from learner.commands.admin_client import AdminClient, AdminTrust
from learner.loop.server import LearnerServer
from tests.conftest import MakeConfig


def test_the_status_of_a_run_without_actors_is_of_that_run(make_config: MakeConfig) -> None:
    with (
        LearnerServer(make_config(replay={"samples_per_insert": 2.0})) as server,
        closing(AdminClient(server.ingest.address, AdminTrust())) as client,
    ):
        view = client.fetch_status()
        assert (view.name, view.inserted, view.actors) == ("counting", 0, ())
        assert (view.return_mean, view.samples_per_insert) == (None, 2.0)


def test_the_replay_ratio_is_set_and_removed_and_the_former_one_returned(make_config: MakeConfig) -> None:
    with (
        LearnerServer(make_config(replay={"samples_per_insert": 2.0})) as server,
        closing(AdminClient(server.ingest.address, AdminTrust())) as client,
    ):
        assert client.set_replay_ratio(None) == 2.0
        assert client.set_replay_ratio(4.0) is None
        assert client.fetch_status().samples_per_insert == 4.0


def test_a_learner_that_does_not_answer_is_named_by_its_address() -> None:
    with (
        closing(AdminClient("127.0.0.1:1", AdminTrust())) as client,
        pytest.raises(LearnerUnreachableError, match=r"127\.0\.0\.1:1: UNAVAILABLE"),
    ):
        client.fetch_status()


def test_a_learner_that_serves_all_users_of_its_host_without_tokens_answers_no_admins(make_config: MakeConfig) -> None:
    with (
        LearnerServer(make_config(server={"insecure": True})) as server,
        closing(AdminClient(server.ingest.address, AdminTrust())) as client,
        pytest.raises(RefusedError, match=r"answers no admins; start it with tokens of admins"),
    ):
        client.fetch_status()
