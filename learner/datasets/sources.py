"""The read-only sources of a replay: datasets from which a share of every batch is drawn."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Final

from common.depth import parse_json
from common.errors import ConfigError, RunDirectoryError
from common.parts import Parts
from learner.datasets.loading import load_dataset
from learner.datasets.opening import open_dataset
from learner.replay.memory import ReplayMemory
from learner.replay.recovery import settle_whole
from learner.replay.value_rules import ValueRules
from learner.shared.durable import removing_unfinished, sync

log = logging.getLogger(__name__)
NOTE: Final = "dataset.json"
"""The file with the name of the dataset of which a source is a copy."""


def open_source(name: str, dataset: str, shared: Path, parts: Parts, rules: ValueRules) -> ReplayMemory:
    """The rows of a dataset as a replay that stays as it is; they are copied once in the life of a run.

    Args:
        name: of the source.
        dataset: see ``learner.datasets.opening.open_dataset``.
        shared: the run's shared directory, which gets the files as ``sources/NAME``.
        parts: of the run; the rows have the columns of its schema.
        rules: which values a column may hold.

    Raises:
        ConfigError: the run has a copy of another dataset under this name.
        DatasetError: the dataset cannot be read, is empty, or has a value that a column refuses.
        SchemaMismatchError: the rows have other columns.
        RunDirectoryError: the files cannot be made or opened, or were copied and are not whole.
    """
    path = shared / "sources" / name
    if not path.exists():
        _copy(dataset, path, parts, rules)
    elif (path / NOTE).exists() and (copied := _read_note(path / NOTE)) != dataset:
        raise ConfigError(
            f"replay.sources.{name}.dataset: expected '{copied}', of which this run has a copy, found '{dataset}'; to "
            "learn from another dataset, begin a new run"
        )
    memory = ReplayMemory.open_saved(path)
    memory.schema.require_equal(parts.schema, mine=f"source {name}", theirs="this run")
    if not memory.is_settled():
        _verify(path, parts, memory.capacity, dataset)
    return memory


def _verify(path: Path, parts: Parts, capacity: int, dataset: str) -> None:
    """Compare a source with its checksums after somebody has copied or restored the run, and note that it is whole.

    A source that has lost rows is refused: a dataset usually exists elsewhere, and no row of it need be given up.
    """
    log.info("%s: its files were copied: every batch is compared with its checksum", path)
    if not settle_whole(ReplayMemory(path, parts.schema, capacity, create=False)):
        raise RunDirectoryError(
            f"{path}: expected the rows of dataset '{dataset}' as they were stored, found others or fewer: the run's "
            f"directory was damaged or copied in part; copy {path} again, or remove it to have the dataset read again"
        )


def _read_note(note: Path) -> str:
    """The dataset of which a source is a copy."""
    try:
        return str(parse_json(note.read_text())["dataset"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RunDirectoryError(f"{note}: expected the name of a dataset, found {error!r}") from error


def _copy(dataset: str, path: Path, parts: Parts, rules: ValueRules) -> None:
    """Copy a dataset into new files, which are at ``path`` once they are whole."""
    with removing_unfinished(path.with_name(f".{path.name}.part")) as draft:
        shutil.rmtree(draft, ignore_errors=True)
        draft.parent.mkdir(exist_ok=True)
        with open_dataset(dataset) as found:
            memory = ReplayMemory(draft, parts.schema, max(1, len(found)), create=True)
            load_dataset(found, parts, memory, rules, whole=True)
        (draft / NOTE).write_text(json.dumps({"dataset": dataset}))
        memory.close()  # It syncs all files of the directory, the note too.
        draft.rename(path)
        sync(path.parent)
