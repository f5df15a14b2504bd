from __future__ import annotations

from collections.abc import Iterator

import pytest

from learner.loop.server import LearnerServer
from tests.learner.ingest.by_hand import Client


@pytest.fixture
def client(host: LearnerServer) -> Iterator[Client]:
    made = Client(host)
    yield made
    made.channel.close()
