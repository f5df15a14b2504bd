"""A cable between a client and a server on this host, which a test pulls or cuts: its connections break at once."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

from common.wire.address import split_address


class Cable:
    """Forwards connections from a port of its own to another one; use as a context manager.

    Args:
        address: of the server, HOST:PORT.
    """

    def __init__(self, address: str) -> None:
        self._server = split_address(address)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        """Connections so far."""
        self._open = set[socket.socket]()
        self._frozen = set[socket.socket]()
        self._is_cut = False
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="cable", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._listener.close()
        self.pull()

    def pull(self) -> None:
        """Break all connections; bytes that are on their way are lost. New connections work."""
        with self._lock:
            ends, self._open = self._open, set()
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def freeze(self) -> None:
        """Pass nothing on in the present connections, which stay open, as if the server were stopped; new ones work."""
        with self._lock:
            self._frozen |= self._open

    def cut(self) -> None:
        """Break all connections, and each new one until ``mend``."""
        self._is_cut = True
        self.pull()

    def mend(self) -> None:
        """Let new connections work again."""
        self._is_cut = False

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._server)
            except OSError:
                near.close()
                continue
            with self._lock:
                if self._is_cut:  # ``cut`` has pulled those that were open before.
                    near.close()
                    far.close()
                    continue
                self.connections += 1
                self._open |= {near, far}
            for here, there in ((near, far), (far, near)):
                threading.Thread(target=self._forward, args=(here, there), name="cable", daemon=True).start()

    def _forward(self, here: socket.socket, there: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := here.recv(1 << 16):
                if here not in self._frozen:
                    there.sendall(data)
        for end in (here, there):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
