"""Clients of an acting service, many in one process: each has a session of one lane, and sends its steps.

A child process (``common.process.child``). Its boot line is ``{"door", "address", "sessions", "kind"}``: ``grpc`` or
``websocket``, where somebody listens who answers each message by one, how many, and the policy of
``benchmarks.acting``. The event ``{}`` says that all sessions are open. Each further line, ``{"hertz", "seconds"}``,
makes them send steps, as fast as they can at 0; the event that answers, ``{"milliseconds", "seconds"}``, has the time
from each step to its action, and of all.

The clients do as little as they can: they write messages that are made in advance but for their number, and do not look
into answers. So the figures are those of the other end.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import chain
from typing import Any, Final

import grpc
import msgpack
import numpy as np

from common.data import Array
from common.process.child import say
from common.wire.pb import acting_pb2 as pb
from common.wire.rpc import CLIENT_OPTIONS

ACT: Final = f"/{pb.DESCRIPTOR.services_by_name['ActingService'].full_name}/Act"
OBSERVATIONS: Final[dict[str, Array]] = {
    "2x256": np.array([0.01, -0.02, 0.03, 0.04], np.float32),
    "cnn": np.zeros((4, 84, 84), np.uint8),
}
"""By policy, the observation of one lane."""
PING: Final = 9
LONG: Final = 126
"""Two more bytes have the size of the frame."""
Exchange = Callable[[int], Awaitable[None]]
"""Sends a step with this number and waits for its answer."""


async def open_grpc(address: str, kind: str) -> Exchange:
    """Open a session on a separate connection by gRPC."""
    options = [*CLIENT_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    call: Any = grpc.aio.insecure_channel(address, options=options).stream_stream(ACT)()
    await call.write(pb.ActRequest(open=pb.OpenSession(lanes=1)).SerializeToString())
    await call.read()
    observation = OBSERVATIONS[kind].tobytes()

    async def exchange(seq: int) -> None:
        step = pb.LaneSteps(seq=seq, observation=observation, reward=[0.0 if seq == 1 else 1.0])
        await call.write(pb.ActRequest(step=step).SerializeToString())
        if await call.read() is grpc.aio.EOF:
            raise ConnectionError("the stream has ended")

    return exchange


async def open_websocket(address: str, kind: str) -> Exchange:
    """Open a session by WebSocket: JSON with numbers, and MessagePack with the bytes of pictures."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"GET / HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    await reader.readuntil(b"\r\n\r\n")
    as_text = kind == "2x256"
    observation = OBSERVATIONS[kind]
    values: Any = [observation.tolist()] if as_text else observation.tobytes()

    async def ask(message: dict[str, Any]) -> None:
        data = json.dumps(message).encode() if as_text else msgpack.packb(message)
        writer.write(frame(data, 0x81 if as_text else 0x82) + data)
        opcode = PING
        while opcode == PING:
            head = await reader.readexactly(2)
            size, opcode = (
                head[1] if head[1] < 126 else int.from_bytes(await reader.readexactly(2), "big"),
                head[0] & 15,
            )
            answer = await reader.readexactly(size)
            if opcode == PING:
                writer.write(frame(answer, 0x8A) + answer)
        if opcode not in (1, 2):
            raise ConnectionError(f"the connection has ended: {answer!r}")

    async def exchange(seq: int) -> None:
        await ask({"step": {"seq": seq, "observation": values, "reward": [0.0 if seq == 1 else 1.0]}})

    await ask({"open": {"lanes": 1}})
    return exchange


def frame(data: bytes, first: int) -> bytes:
    """What stands before the data of a client's frame; its mask is 0, which leaves the data as they are."""
    n = len(data)
    return bytes([first, 128 | n]) + bytes(4) if n < 126 else bytes([first, 254]) + n.to_bytes(2, "big") + bytes(4)


class Client:
    """One session."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange, self._seq = exchange, 0

    async def act(self, hertz: float, seconds: float) -> list[float]:
        """Send steps for ``seconds``; the milliseconds to each action."""
        found, interval = list[float](), 1 / hertz if hertz else 0.0
        due = time.perf_counter() + random.uniform(0, interval)
        end = time.perf_counter() + seconds
        while max(due, time.perf_counter()) < end:
            if interval:
                await asyncio.sleep(due - time.perf_counter())
            self._seq += 1
            began = time.perf_counter()
            await self._exchange(self._seq)
            found.append((time.perf_counter() - began) * 1e3)
            due = max(due + interval, time.perf_counter())
        return found


async def serve() -> None:
    boot = json.loads(sys.stdin.readline())
    open_session = {"grpc": open_grpc, "websocket": open_websocket}[boot["door"]]
    clients = [Client(await open_session(boot["address"], boot["kind"])) for _ in range(boot["sessions"])]
    say({})
    while line := await asyncio.to_thread(sys.stdin.readline):
        began = time.perf_counter()
        found = await asyncio.gather(*(client.act(**json.loads(line)) for client in clients))
        say({"milliseconds": [*chain.from_iterable(found)], "seconds": time.perf_counter() - began})


if __name__ == "__main__":
    asyncio.run(serve())
