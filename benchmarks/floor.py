"""The floor of the wire's benchmarks: a gRPC server that only acknowledges messages or sends bytes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from benchmarks.report import cpu_seconds

METHOD = "/floor/Push"
MODEL_METHOD = "/floor/Model"


class _Handler(grpc.GenericRpcHandler):
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        if handler_call_details.method == MODEL_METHOD:
            return grpc.unary_stream_rpc_method_handler(send)
        return grpc.stream_stream_rpc_method_handler(acknowledge)


async def acknowledge(requests: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request[:8]


async def send(request: bytes, _: object) -> AsyncIterator[bytes]:
    """Send bytes. The request has the total and the size of one message, both as decimal text."""
    total, size = map(int, request.split())
    data = bytes(total)
    for offset in range(0, total, size):
        yield data[offset : offset + size]


@dataclass(frozen=True)
class Floor:
    """A floor server in a separate process."""

    address: str
    pid: int


@contextmanager
def floor_server() -> Iterator[Floor]:
    """Start a floor server; it ends with the context."""
    command = [sys.executable, "-m", "benchmarks.floor"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        # Popen closes its standard input at the end of the block; the server ends when it reads that.
        yield Floor(f"127.0.0.1:{server.stdout.readline().strip()}", server.pid)


@dataclass(frozen=True)
class Rate:
    """Messages per second of wall-clock, and processor seconds of both sides for one message."""

    per_second: float
    cpu_seconds: float


def measure_floor(message_bytes: int, window: int, seconds: float) -> Rate:
    """The rate of messages to a separate floor server, with at most ``window`` unacknowledged at a time."""
    with floor_server() as floor, grpc.insecure_channel(floor.address) as channel:
        free, payload, sent = threading.Semaphore(window), os.urandom(message_bytes), 0
        end = time.perf_counter() + seconds

        def messages() -> Iterator[bytes]:
            nonlocal sent
            while time.perf_counter() < end:
                free.acquire(timeout=5)
                sent += 1
                yield payload

        started, computed = time.perf_counter(), time.process_time() + cpu_seconds(floor.pid)
        push: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(METHOD)
        for _ in push(messages()):
            free.release()
        spent = time.process_time() + cpu_seconds(floor.pid) - computed
        return Rate(sent / (time.perf_counter() - started), spent / sent)


async def serve() -> None:
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    server.add_generic_rpc_handlers((_Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(serve())
