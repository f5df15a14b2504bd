"""Relays in a thread of this process, over real sockets."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from common.wire.trust import Trust
from crossborder.relaying.relay import RelaySettings, relay
from tests.conftest import PATIENCE


@contextmanager
def relaying(learner: str, listen: str = "127.0.0.1:0", trust: Trust | None = None, **files: Any) -> Iterator[str]:
    """A relay for a learner; the relay's own address."""
    settings = RelaySettings(learner=learner, listen=listen, trust=trust or Trust(), **files)
    settings.check()
    addresses, loop, stopped = queue.Queue[str](), asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(relay(settings, stopped, addresses.put)))
    thread.start()
    try:
        yield addresses.get(timeout=PATIENCE)
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(PATIENCE)
        loop.close()
