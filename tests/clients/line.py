"""A line between a client and a service that breaks, or falls silent, on command."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from tests.conftest import PATIENCE


class Line:
    """Carries the bytes of connections to ``target``, HOST:PORT; the target may come and go.

    ``breaks_at`` may be set to ``request`` or ``answer``: the next bytes in that direction are lost, with their
    connection, but for the first ``keeps`` of them. While ``flows`` is not set, answers wait; with ``pings``, the
    client then gets pings of WebSocket, as from a service that lives.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.breaks_at, self.keeps, self.pings = "", 0, False
        self.flows = threading.Event()
        self.flows.set()
        self.n_connections = 0
        self._open = set[socket.socket]()

    @classmethod
    @contextmanager
    def to(cls, target: str) -> Iterator[Self]:
        line = cls(target)
        thread = threading.Thread(target=line._accept, name="line")
        thread.start()
        try:
            yield line
        finally:
            line._listener.shutdown(socket.SHUT_RDWR)  # Ends ``accept``.
            line._listener.close()
            line.flows.set()
            line.cut()
            thread.join(PATIENCE)

    def cut(self) -> None:
        """Break all connections."""
        for end in tuple(self._open):
            _hang_up(end)

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            self.n_connections += 1
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(self._target) as service:
            ends = {client, service}
            self._open |= ends
            back = threading.Thread(target=self._pump, args=(service, client, "answer"), daemon=True)
            back.start()
            self._pump(client, service, "request")
            back.join(PATIENCE)
            self._open -= ends

    def _hold(self, data: bytes, sink: socket.socket) -> None:
        """Wait until answers flow."""
        end = time.monotonic() + PATIENCE
        while not self.flows.wait(0.2) and time.monotonic() < end:
            if self.pings and not data.startswith(b"HTTP"):  # Before it, there is no WebSocket yet.
                sink.sendall(b"\x89\x00")

    def _pump(self, source: socket.socket, sink: socket.socket, kind: str) -> None:
        with contextlib.suppress(OSError):  # The other direction has hung up.
            while data := source.recv(1 << 16):
                if kind == "answer":
                    self._hold(data, sink)
                if self.breaks_at == kind:
                    self.breaks_at = ""
                    sink.sendall(data[: self.keeps])
                    break
                sink.sendall(data)
        _hang_up(source)
        _hang_up(sink)


def _hang_up(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
