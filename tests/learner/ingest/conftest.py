from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from learner.loop.server import LearnerServer
from tests.conftest import MakeConfig, counting_config, merged
from tests.learner.ingest.by_hand import Client


@pytest.fixture
def make_config(tmp_path: Path) -> MakeConfig:
    """As for other tests, but a learner does not wait long for clients, which never leave by themselves."""
    return lambda **changes: counting_config(tmp_path / "run", **merged({"server": {"grace_seconds": 0.1}}, changes))


@pytest.fixture
def client(host: LearnerServer) -> Iterator[Client]:
    made = Client(host)
    yield made
    made.channel.close()
