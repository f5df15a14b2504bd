"""Doorbells between processes: one rings, another one waits without spinning."""

from __future__ import annotations

import os
import select


class Bell:
    """A pipe that wakes another process; ringing never blocks, waiting always has a deadline."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.read_fd = read_fd
        self.write_fd = write_fd

    @classmethod
    def create(cls) -> Bell:
        read_fd, write_fd = os.pipe()
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        return cls(read_fd, write_fd)

    def ring(self) -> None:
        try:
            os.write(self.write_fd, b"!")
        except BlockingIOError:
            return  # The pipe is full of rings nobody heard yet: one more says nothing new.
        except BrokenPipeError:
            return  # The other side is gone; its supervisor deals with that.

    def clear(self) -> None:
        """Forget the rings heard so far."""
        try:
            while len(os.read(self.read_fd, 4096)) == 4096:
                pass
        except BlockingIOError:
            return

    def wait(self, seconds: float) -> bool:
        """Wait for a ring; True if there was one."""
        ready, _, _ = select.select([self.read_fd], [], [], seconds)
        if ready:
            self.clear()
        return bool(ready)

    def close(self) -> None:
        os.close(self.read_fd)
        os.close(self.write_fd)
