"""Hundreds of actors join at once, as when a cluster comes up: all are served, and those beyond the limit refused."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import grpc
import numpy as np

from common.data import Schema
from common.wire.codec import encode
from common.wire.pb import crossborder_pb2 as pb
from common.wire.pb import crossborder_pb2_grpc as pb_grpc
from common.wire.rpc import CLIENT_OPTIONS, ERROR_KEY, PROTOCOL_VERSION
from learner.loop.server import LearnerServer
from learner.shared.actor_table import ActorState
from tests.chaos.report import scratch
from tests.conftest import PATIENCE, counting_config

ROWS: Final = 10
_OWN_CONNECTION: Final = ("grpc.use_local_subchannel_pool", 1)


class Storm:
    """Light actors, each with a connection of its own, in one process.

    Args:
        address: the learner's.
        schema: of its items.
        batches: that each pushes, at least 2.
    """

    def __init__(self, address: str, schema: Schema, batches: int) -> None:
        self._address, self._schema, self._batches = address, schema, batches
        self._payload = encode(schema, {c.name: np.zeros((ROWS, *c.shape), c.dtype) for c in schema.columns}, ROWS)
        self._began = 0.0
        self._may_leave = asyncio.Event()
        self.ids: list[int] = []
        self.joined_seconds: list[float] = []
        self.pushed_seconds: list[float] = []
        self.refusals: list[tuple[grpc.StatusCode, str]] = []

    async def break_loose(self, actors: int, beyond: int) -> None:
        """All at once; once their items are in, others come and are refused; then all push once more and leave."""
        self._began = time.monotonic()
        all_in = asyncio.Barrier(actors + 1)
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            for incarnation in range(1, actors + 1):
                group.create_task(self._act(incarnation, all_in))
            await all_in.wait()
            await asyncio.gather(*(self._come_too_late(actors + k) for k in range(1, beyond + 1)))
            self._may_leave.set()

    def _channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self._address, options=[*CLIENT_OPTIONS, _OWN_CONNECTION])

    async def _act(self, incarnation: int, all_in: asyncio.Barrier) -> None:
        async with self._channel() as channel:
            stub = pb_grpc.LearnerServiceStub(channel)
            self.ids.append((await stub.Join(_join(incarnation), wait_for_ready=True)).actor_id)
            self.joined_seconds.append(time.monotonic() - self._began)
            stream = stub.PushItems()
            for seq in range(1, self._batches):
                await self._push(stream, incarnation, seq)
            self.pushed_seconds.append(time.monotonic() - self._began)
            await all_in.wait()
            await self._may_leave.wait()
            await self._push(stream, incarnation, self._batches)
            await stream.write(pb.PushItemsRequest(incarnation=incarnation, report=pb.Report(leaving=True)))
            await stream.read()
            await stream.done_writing()

    async def _push(self, stream: Any, incarnation: int, seq: int) -> None:
        await stream.write(
            pb.PushItemsRequest(
                incarnation=incarnation, seq=seq, schema_hash=self._schema.hash, rows=ROWS, payload=self._payload
            )
        )
        assert (await stream.read()).acked_seq == seq

    async def _come_too_late(self, incarnation: int) -> None:
        async with self._channel() as channel:
            try:
                await pb_grpc.LearnerServiceStub(channel).Join(_join(incarnation), wait_for_ready=True)
            except grpc.aio.AioRpcError as error:
                self.refusals.append((error.code(), str(dict(error.trailing_metadata()).get(ERROR_KEY))))


def _join(incarnation: int) -> pb.JoinRequest:
    return pb.JoinRequest(protocol_version=PROTOCOL_VERSION, incarnation=incarnation, host="storm", pid=1)


def storm(actors: int, beyond: int, batches: int) -> dict[str, Any]:
    """So many actors join at once and push, and, when every id is taken, so many more.

    Raises:
        AssertionError: an item is lost or doubled, an id given twice, or one too many let in.
    """
    with scratch() as directory:
        # All actors come from this host.
        server_config = {"max_actors": actors, "grace_seconds": 0.5, "max_address_actors": actors + beyond}
        config = counting_config(directory / "run", server=server_config)
        with LearnerServer(config) as server:
            those = Storm(server.ingest.address, server.run.parts.schema, batches)
            asyncio.run(those.break_loose(actors, beyond))
            items, states = server.buffer.inserted, set(server.actor_table["state"][:actors])
    assert sorted(those.ids) == list(range(actors))
    assert those.refusals == [(grpc.StatusCode.RESOURCE_EXHAUSTED, "too_many_actors")] * beyond
    assert items == actors * batches * ROWS
    assert states == {ActorState.LEFT}
    return {
        "actors": actors,
        "beyond": beyond,
        "items": items,
        "refused": len(those.refusals),
        "joined_seconds": max(those.joined_seconds),
        "pushed_seconds": max(those.pushed_seconds),
    }
