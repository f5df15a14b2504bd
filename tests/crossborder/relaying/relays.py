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
    addresses, stopped = queue.Queue[str](), asyncio.Event()
    loops = queue.SimpleQueue[asyncio.AbstractEventLoop]()

    async def serve() -> None:
        loops.put(asyncio.get_running_loop())
        await relay(settings, stopped, addresses.put)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))  # As the command; it ends the calls that are open.
    thread.start()
    loop = loops.get(timeout=PATIENCE)
    try:
        yield addresses.get(timeout=PATIENCE)
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(PATIENCE)
