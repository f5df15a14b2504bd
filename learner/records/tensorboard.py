"""Records as TensorBoard scalars: ``pip install 'crossborder[tensorboard]'``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

try:
    from torch.utils.tensorboard.writer import SummaryWriter
except ImportError as error:
    raise ImportError(f"{error}; pip install 'crossborder[tensorboard]'") from error


class TensorBoardRecorder:
    """A ``Recorder`` that writes every key as a scalar over ``opt_steps``.

    Args:
        run_dir: the run's directory; the event files go to ``tensorboard/`` in it.
    """

    def __init__(self, run_dir: Path) -> None:
        self._writer = SummaryWriter(str(run_dir / "tensorboard"))

    def write(self, opt_steps: int, record: Mapping[str, float]) -> None:
        for key, value in record.items():
            self._writer.add_scalar(key, value, opt_steps)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
