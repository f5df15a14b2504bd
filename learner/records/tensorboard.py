"""Records as TensorBoard scalars: ``pip install 'crossborder[tensorboard]'``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from common.process.clocks import Deadline

try:
    from torch.utils.tensorboard.writer import SummaryWriter
except ImportError as error:
    raise ImportError(f"{error}; pip install 'crossborder[tensorboard]'") from error


REPLACE_SECONDS: Final = 60.0
"""A writer that failed is replaced at most this often: each has a file, and TensorBoard shows them as one curve."""


class TensorBoardRecorder:
    """A ``Recorder`` that writes every key as a scalar over ``opt_steps``.

    Args:
        run_dir: the run's directory; the event files go to ``tensorboard/`` in it.
    """

    def __init__(self, run_dir: Path) -> None:
        self._directory = str(run_dir / "tensorboard")
        self._writer, self._may_replace = SummaryWriter(self._directory), Deadline(0.0)

    def write(self, opt_steps: int, record: Mapping[str, float]) -> None:
        with self._replacing_failed():
            for key, value in record.items():
                self._writer.add_scalar(key, value, opt_steps)

    def flush(self) -> None:
        with self._replacing_failed():
            self._writer.flush()

    @contextmanager
    def _replacing_failed(self) -> Iterator[None]:
        """A context for each use of the writer: one that could not write, as on a full disk, never writes again."""
        try:
            yield
        except OSError:
            if self._may_replace.passed():
                self._writer, self._may_replace = SummaryWriter(self._directory), Deadline(REPLACE_SECONDS)
            raise

    def close(self) -> None:
        self._writer.close()
