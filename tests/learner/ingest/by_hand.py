"""An actor written by hand: it speaks the wire to a real ingest process, one request at a time."""

from __future__ import annotations

import queue
from functools import cached_property

import grpc
import numpy as np
import pytest

from common.data import Items, Schema
from common.wire.codec import encode, schema_from_pb
from common.wire.pb import crossborder_pb2 as pb
from common.wire.pb import crossborder_pb2_grpc as pb_grpc
from common.wire.rpc import ERROR_KEY, PROTOCOL_VERSION
from learner.loop.server import LearnerServer
from learner.replay.memory import ReplayMemory
from tests.conftest import PATIENCE

SECONDS = PATIENCE


class Talk:
    """One PushItems stream, a request at a time."""

    def __init__(self, stub: pb_grpc.LearnerServiceStub) -> None:
        self._requests: queue.Queue[pb.PushItemsRequest | None] = queue.Queue()
        self._responses = stub.PushItems(iter(self._requests.get, None), timeout=SECONDS)

    def put(self, request: pb.PushItemsRequest) -> None:
        self._requests.put(request)

    def say(self, request: pb.PushItemsRequest) -> pb.PushItemsResponse:
        self.put(request)
        return next(self._responses)

    def end(self) -> None:
        self._requests.put(None)
        for _ in self._responses:
            raise AssertionError("nothing more was asked")

    def cancel(self) -> None:
        """Break off, as an actor does that is killed."""
        self._responses.cancel()

    def hear(self) -> pb.PushItemsResponse:
        return next(self._responses)


class Client:
    """An actor written by hand."""

    def __init__(self, server: LearnerServer, incarnation: int = 77) -> None:
        self.server = server
        self.incarnation = incarnation
        self.channel = grpc.insecure_channel(server.ingest.address)
        self.stub = pb_grpc.LearnerServiceStub(self.channel)

    @cached_property
    def schema(self) -> Schema:
        """The schema of rows, as ``Check`` tells it."""
        return schema_from_pb(self.stub.Check(pb.CheckRequest(), timeout=SECONDS).schema)

    def join(self, **changes: object) -> pb.JoinResponse:
        request = {
            "protocol_version": PROTOCOL_VERSION,
            "incarnation": self.incarnation,
            "host": "here",
            "pid": 1,
            **changes,
        }
        return self.stub.Join(pb.JoinRequest(**request), timeout=SECONDS)  # type: ignore[arg-type]

    def items(self, start: int, count: int) -> Items:
        items = self.schema.empty(count)
        for column in items.values():
            column[:] = 0
        items["reward"][:] = np.arange(start, start + count)
        return items

    def batch(self, seq: int, start: int = 0, count: int = 5, **changes: object) -> pb.PushItemsRequest:
        request = {
            "incarnation": self.incarnation,
            "seq": seq,
            "schema_hash": self.schema.hash,
            "rows": count,
            "payload": encode(self.schema, self.items(start, count), count),
            **changes,
        }
        return pb.PushItemsRequest(**request)  # type: ignore[arg-type]

    def memory(self) -> ReplayMemory:
        """The replay of the run, as its files are now."""
        config = self.server.config
        assert config.run_dir is not None
        return ReplayMemory(config.run_dir / "shared" / "replay", self.schema, config.replay.capacity, create=False)

    def stored(self) -> list[float]:
        """The rewards of all stored rows, in the order of storing."""
        memory = self.memory()
        return [float(reward) for reward in memory.columns["reward"][: memory.committed]]


def refusal(error: pytest.ExceptionInfo[grpc.RpcError]) -> tuple[grpc.StatusCode, str, str]:
    names = [str(entry.value) for entry in error.value.trailing_metadata() if entry.key == ERROR_KEY]
    return error.value.code(), names[0], error.value.details() or ""
