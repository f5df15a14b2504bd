"""What an exercise says while it runs, and what it leaves behind."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

log = logging.getLogger("chaos")
RESULTS = Path(__file__).parent / "results"


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory that stays after a failure, with everything that was logged in it."""
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    yield directory
    shutil.rmtree(directory)


def tell(line: str) -> None:
    """Say how far it is."""
    log.info("%s", line)


def keep(name: str, result: dict[str, Any]) -> None:
    """Write the figures of one exercise."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
