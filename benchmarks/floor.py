"""The floor of ``benchmarks.ingest``: a gRPC server that acknowledges each message of a stream and does nothing."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc

METHOD = "/floor/Push"


class _Handler(grpc.GenericRpcHandler):
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        del handler_call_details  # There is one method only.
        return grpc.stream_stream_rpc_method_handler(acknowledge)


async def acknowledge(requests: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request[:8]


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
