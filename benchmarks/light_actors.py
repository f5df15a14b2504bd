"""Light actors, many in one process: each joins and has a separate connection, and pushes one batch over and over.

A child process (``common.process.child``). Its boot line is ``{"learner", "floor", "actors", "rows"}``: the learner's
address, the address of a ``benchmarks.floor`` that gets the batches instead of the learner, or null, the number of
actors, and the rows of a batch. The event ``{}`` says that all have joined and sent a heartbeat. Each further line,
``{"interval", "seconds"}``, makes the actors push; the event that answers, ``{"milliseconds", "seconds"}``, has the
time to the acknowledgement of each batch, and of all.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import Any

import grpc

from benchmarks.floor import METHOD
from benchmarks.screens import life
from common.process.child import say
from common.wire.codec import encode, schema_from_pb
from common.wire.pb import crossborder_pb2 as pb
from common.wire.pb import crossborder_pb2_grpc as pb_grpc
from common.wire.rpc import CLIENT_OPTIONS, PROTOCOL_VERSION

WINDOW = 4
"""Batches of one actor that are not acknowledged yet, at most; the default of ``push.window``."""
OPTIONS = [*CLIENT_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]  # A separate connection.
PUSH_ITEMS = f"/{pb.DESCRIPTOR.services_by_name['LearnerService'].full_name}/PushItems"


class LightActor:
    """One stream of messages, each acknowledged by one answer.

    Args:
        call: the stream, of bytes both ways.
        message: makes the message with a sequence number, 1, 2, 3, …; number 0 makes a heartbeat.
        goodbye: the last message.
    """

    def __init__(self, call: Any, message: Callable[[int], bytes], goodbye: bytes) -> None:
        self._call, self._message, self._goodbye = call, message, goodbye
        self._room = asyncio.Semaphore(WINDOW)
        self._seq = 0
        self._sent_at = deque[float]()
        self._milliseconds: list[float] = []

    async def greet(self) -> None:
        """Send a heartbeat: the learner waits only seconds for the first message of a stream."""
        await self._room.acquire()
        await self._send(self._message(0))
        await self._hear_all()

    async def push(self, interval: float, seconds: float) -> list[float]:
        """Push a batch every ``interval`` seconds for ``seconds``; the milliseconds to each acknowledgement."""
        self._milliseconds.clear()
        due = time.perf_counter() + random.uniform(0, interval)
        end = time.perf_counter() + seconds
        while max(due, time.perf_counter()) < end:
            await asyncio.sleep(due - time.perf_counter())
            await self._room.acquire()
            self._seq += 1
            await self._send(self._message(self._seq))
            due += interval
        await self._hear_all()
        return self._milliseconds

    async def _hear_all(self) -> None:
        """Wait until every message is acknowledged."""
        for _ in range(WINDOW):
            await self._room.acquire()
        for _ in range(WINDOW):
            self._room.release()

    async def _send(self, message: bytes) -> None:
        self._sent_at.append(time.perf_counter())
        await self._call.write(message)

    async def hear(self) -> None:
        """Take acknowledgements until the stream ends."""
        while await self._call.read() is not grpc.aio.EOF:
            self._milliseconds.append((time.perf_counter() - self._sent_at.popleft()) * 1e3)
            self._room.release()

    async def leave(self) -> None:
        await self._send(self._goodbye)
        await self._call.done_writing()


async def join(learner: str, floor: str | None, rows: int) -> LightActor:
    """Join a learner. The batches go to the floor, if there is one, and to the learner otherwise."""
    incarnation = random.getrandbits(63) | 1
    channel = grpc.aio.insecure_channel(learner, options=OPTIONS)
    request = pb.JoinRequest(protocol_version=PROTOCOL_VERSION, incarnation=incarnation, host="fleet", pid=1)
    schema = schema_from_pb((await pb_grpc.LearnerServiceStub(channel).Join(request)).schema)
    payload = encode(schema, life(schema, rows), rows)
    goodbye = pb.PushItemsRequest(incarnation=incarnation, report=pb.Report(leaving=True)).SerializeToString()

    def message(seq: int) -> bytes:
        report = pb.Report(env_steps=seq * rows)
        if not seq:
            return pb.PushItemsRequest(incarnation=incarnation, report=report).SerializeToString()
        return pb.PushItemsRequest(
            incarnation=incarnation, seq=seq, schema_hash=schema.hash, rows=rows, payload=payload, report=report
        ).SerializeToString()

    if floor is not None:
        channel = grpc.aio.insecure_channel(floor, options=OPTIONS)
    call: Any = channel.stream_stream(PUSH_ITEMS if floor is None else METHOD)()
    return LightActor(call, message, goodbye)


async def serve() -> None:
    boot = json.loads(sys.stdin.readline())
    async with asyncio.TaskGroup() as group:

        async def enter() -> LightActor:
            actor = await join(boot["learner"], boot["floor"], boot["rows"])
            group.create_task(actor.hear())
            await actor.greet()
            return actor

        actors = await asyncio.gather(*(enter() for _ in range(boot["actors"])))
        say({})
        while line := await asyncio.to_thread(sys.stdin.readline):
            began = time.perf_counter()
            pushed = await asyncio.gather(*(actor.push(**json.loads(line)) for actor in actors))
            say({"milliseconds": list(chain.from_iterable(pushed)), "seconds": time.perf_counter() - began})
        await asyncio.gather(*(actor.leave() for actor in actors))


if __name__ == "__main__":
    asyncio.run(serve())
