from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from learner.loop.server import LearnerServer
from tests.conftest import MORE_STEPS, MakeConfig, counting_config, merged
from tests.learner.ingest.by_hand import Client


@pytest.fixture
def make_config(tmp_path: Path) -> MakeConfig:
    """As for other tests, but a learner does not wait long for clients, which never leave by themselves."""
    return lambda **changes: counting_config(tmp_path / "run", **merged({"server": {"grace_seconds": 0.1}}, changes))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LearnerServer]:
    """A learner host for the tests of a file that do not mind what others have done there; nobody trains."""
    config = counting_config(tmp_path_factory.mktemp("shared") / "run", server={"grace_seconds": 0.1})
    with LearnerServer(config) as server:
        server.control.trainer_waits_for = MORE_STEPS
        yield server


_INCARNATIONS = count(10_000)


@pytest.fixture
def guest(shared: LearnerServer) -> Iterator[Client]:
    """Another actor of the shared host in each test."""
    made = Client(shared, next(_INCARNATIONS))
    yield made
    made.channel.close()


@pytest.fixture
def client(host: LearnerServer) -> Iterator[Client]:
    made = Client(host)
    yield made
    made.channel.close()
