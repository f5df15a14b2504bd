"""Doorbells between processes: one process rings, another waits for it without spinning."""

from __future__ import annotations

import os
import select


class Bell:
    """A pipe that wakes another process; ringing never blocks, waiting always has a deadline.

    Args:
        read_fd: of the process that waits; it does not block.
        write_fd: of the process that rings; it does not block.
    """

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.read_fd = read_fd
        self.write_fd = write_fd

    @classmethod
    def create(cls) -> Bell:
        """Make a new pipe; its owner closes both ends with ``close``."""
        read_fd, write_fd = os.pipe()
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        return cls(read_fd, write_fd)

    def ring(self) -> None:
        """Wake the process that waits; several rings before it wakes count as one."""
        try:
            os.write(self.write_fd, b"!")
        except BlockingIOError:
            return  # The pipe is full of rings that nobody has heard yet: one more ring would change nothing.
        except BrokenPipeError:
            return  # The process that waits is gone: its supervisor starts another.

    def clear(self) -> None:
        """Read all rings out of the pipe."""
        try:
            while len(os.read(self.read_fd, 4096)) == 4096:
                pass
        except BlockingIOError:
            return

    def wait(self, seconds: float) -> bool:
        """Wait for a ring and read all rings; return whether there was one."""
        rings = select.poll()  # select(2) takes no descriptor above 1023.
        rings.register(self.read_fd, select.POLLIN)
        if rung := bool(rings.poll(1000 * seconds)):
            self.clear()
        return rung

    def close(self) -> None:
        """Close both ends."""
        os.close(self.read_fd)
        os.close(self.write_fd)
