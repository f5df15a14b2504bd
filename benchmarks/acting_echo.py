"""The floor of ``benchmarks.acting``: servers that answer each message, without sessions, checks and limits.

python -m benchmarks.acting_echo DOOR KIND     DOOR: grpc, websocket, or network: gRPC, with the same network's actions

It writes its port on stdout, and ends when its standard input is closed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import grpc
import msgpack
import numpy as np
import torch
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as serve_websocket
from websockets.exceptions import ConnectionClosed

from benchmarks.acting_clients import OBSERVATIONS
from common.config.server_config import ServerConfig
from common.wire.pb import acting_pb2 as pb
from learner.ingest.server_options import server_options

Answer = Callable[[AsyncIterator[bytes], Any], AsyncIterator[bytes]]
ACTION: dict[str, Any] = {"seq": 1, "action": [0], "version": 12000, "seconds": 0.000312}
TOLD = pb.ActResponse(action=pb.LaneActions(seq=1, action=bytes(8), version=12000, seconds=0.000312))


async def echo(requests: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
    answer = TOLD.SerializeToString()
    async for _request in requests:
        yield answer


class Network:
    """Chooses the actions of all messages that came while it computed."""

    def __init__(self, kind: str) -> None:
        from benchmarks.acting import make_agent  # noqa: PLC0415 - it imports this package's servers

        torch.set_num_threads(1)
        self._agent, self._observation = make_agent(kind), OBSERVATIONS[kind]
        self._waiting = list[tuple[bytes, asyncio.Future[bytes]]]()
        self._came = asyncio.Event()

    async def answer(self, requests: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
        async for request in requests:
            step = pb.ActRequest.FromString(request).step
            if not step.seq:
                yield TOLD.SerializeToString()
                continue
            chosen = asyncio.get_running_loop().create_future()
            self._waiting.append((step.observation, chosen))
            self._came.set()
            action = pb.LaneActions(seq=step.seq, action=await chosen, version=12000)
            yield pb.ActResponse(action=action).SerializeToString()

    async def run(self) -> None:
        while await self._came.wait():
            await asyncio.sleep(0)
            self._came.clear()
            batch, self._waiting = self._waiting, []
            raw = np.frombuffer(b"".join(observation for observation, _ in batch), self._observation.dtype)
            actions = self._agent.sample(raw.reshape(len(batch), *self._observation.shape))
            for (_, chosen), action in zip(batch, actions.astype(np.int64), strict=True):
                chosen.set_result(action.tobytes())


async def start_grpc(answer: Answer) -> int:
    class Handler(grpc.GenericRpcHandler):
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:  # noqa: ARG002
            return grpc.stream_stream_rpc_method_handler(answer)

    server = grpc.aio.server(options=server_options(ServerConfig()))  # As the service has it: clients send pings.
    server.add_generic_rpc_handlers((Handler(),))
    port: int = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    SERVERS.append(server)
    return port


SERVERS = list[Any]()
"""A server that nobody holds ends."""


async def start_websocket() -> int:
    text, packed = json.dumps({"action": ACTION}), msgpack.packb({"action": ACTION})

    async def answer(socket: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            async for message in socket:
                await socket.send(text if isinstance(message, str) else packed)

    server = await serve_websocket(answer, "127.0.0.1", 0, compression=None, max_size=4 << 20, ping_interval=None)
    SERVERS.append(server)
    port: int = next(iter(server.sockets)).getsockname()[1]
    return port


async def main(door: str, kind: str) -> None:
    if door == "network":
        network = Network(kind)
        SERVERS.append(asyncio.create_task(network.run()))
        port = await start_grpc(network.answer)
    else:
        port = await (start_grpc(echo) if door == "grpc" else start_websocket())
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)  # Nothing is to be put in order.


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
