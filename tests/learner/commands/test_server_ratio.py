from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from common.errors import RefusedError
from learner.loop.server import LearnerServer
from tests.conftest import Command, MakeConfig


@pytest.fixture
def server(make_config: MakeConfig) -> Iterator[LearnerServer]:
    """Holds a replay ratio of 2 and answers admins; nobody trains."""
    with LearnerServer(make_config(server={"admin": True}, replay={"samples_per_insert": 2.0})) as server:
        yield server


def test_the_command_sets_the_replay_ratio_and_prints_the_former_one(
    start: Callable[..., Command], server: LearnerServer
) -> None:
    for value, code, answer in (
        ("4", 0, "replay ratio 4 instead of 2"),
        ("null", 0, "replay ratio null instead of 4"),
        ("1e7", RefusedError.exit_code, "less than or equal to 1000000, found 10000000.0"),
    ):
        command = start("learner-server", "ratio", "--learner", server.ingest.address, value)
        assert command.wait() == code
        assert answer in command.output()
