from __future__ import annotations

import asyncio
from typing import Any

import pytest

from common.errors import CrossborderError
from crossborder.serving.connection import Connection


@pytest.fixture
def _busy_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second passes before a client is told why its connection ends."""
    talk = Connection.talk

    async def talk_late(connection: Connection, *arguments: Any) -> None:
        try:
            await talk(connection, *arguments)
        except CrossborderError:
            await asyncio.sleep(1.0)
            raise

    monkeypatch.setattr(Connection, "talk", talk_late)
