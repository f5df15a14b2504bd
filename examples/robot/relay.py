"""Passes TCP connections on to another port: this process is the network between a robot and the learner.

    python -m examples.robot.relay 50052 50051      listens on 50052, passes on to 50051

SIGSTOP makes it a network that has gone silent: no bytes arrive and no connection is refused, until SIGCONT.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

HOST = "127.0.0.1"


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on until one side ends."""
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        return
    finally:
        writer.close()


async def relay(listen: int, target: int) -> None:
    """Pass bytes from one port of this host on to another port, and the answers back, until the task is cancelled."""

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection(HOST, target)
        except OSError:  # The learner does not listen: the robot finds its connection closed, and tries again.
            writer.close()
            return
        await asyncio.gather(_pass_on(reader, there_writer), _pass_on(there_reader, writer))

    server = await asyncio.start_server(connect, HOST, listen)
    async with server:
        await server.serve_forever()


def main(argv: Sequence[str] | None = None) -> None:
    """Relay between the ports of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("listen", type=int, help="the port that the robot connects to")
    parser.add_argument("target", type=int, help="the port of the learner")
    arguments = parser.parse_args(argv)
    asyncio.run(relay(arguments.listen, arguments.target))


if __name__ == "__main__":
    main()
