"""The floor of ``benchmarks.ingest`` and ``.model``: a gRPC server that acknowledges messages, or sends bytes, only."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc

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
    """So many bytes, in pieces of so many."""
    total, size = map(int, request.split())
    data = bytes(total)
    for offset in range(0, total, size):
        yield data[offset : offset + size]


async def serve() -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(serve())
