"""States of training on disk, ``checkpoints/{opt_steps}/``: with the replay all that a resumed run needs.

    manifest.json       format, run, incarnation, opt steps, score, configuration's hash, SHA-256 of the others
    state.json          counters and random generators
    state.safetensors   networks, targets, optimisers
    replay.json         how far the replay was when all of it was on disk (``learner.replay.recovery``)

Each is complete or not there; one that a disk has damaged is found out by its hashes, and the one before it is taken.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from common.errors import CheckpointError
from learner.replay.recovery import Watermark
from learner.shared.durable import put_in_place, removing_unfinished
from learner.storage.checkpoint import SaveCounts

log = logging.getLogger(__name__)
FORMAT: Final = 1


@dataclass(frozen=True)
class StateOfRun:
    """A run between two opt steps. ``values`` is JSON: a text cannot change while it waits to be written."""

    opt_steps: int
    score: float | None
    """The best so far."""
    tensors: Mapping[str, torch.Tensor]
    values: str


class StateFiles:
    """The states of one run.

    Args:
        directory: where they are.
        run: what every manifest says of the run; ``run_id`` is compared when one is read.
        keep: so many, the newest.
        counts: where what is written is counted.
        guard: called before each write; raises a CheckpointError if the directory is no longer the run's.
    """

    def __init__(
        self,
        directory: Path,
        run: Mapping[str, Any],
        keep: int,
        counts: SaveCounts,
        guard: Callable[[], None] | None = None,
    ) -> None:
        self.directory, self._run, self._keep, self._counts, self._guard = directory, run, keep, counts, guard

    def write(self, state: StateOfRun, watermark: Watermark | None = None) -> None:
        """Write a state that lasts, and remove those beyond ``keep``; with how far the replay is on disk, if it is.

        Raises:
            CheckpointError: it cannot be written, or holds NaN and would be of no use; those before are still there.
        """
        with self._counts.timed(), removing_unfinished(self.directory / f".{state.opt_steps}.part") as draft:
            _require_numbers(state)
            if self._guard is not None:
                self._guard()
            try:
                self._write(state, watermark, draft)
            except (OSError, SafetensorError, RuntimeError) as error:
                raise CheckpointError(f"{draft}: cannot be saved: {error}") from error
        self._counts.saved("state")

    def _write(self, state: StateOfRun, watermark: Watermark | None, draft: Path) -> None:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        save_file({k: v.contiguous() for k, v in state.tensors.items()}, draft / "state.safetensors")
        (draft / "state.json").write_text(state.values)
        if watermark is not None:
            (draft / "replay.json").write_text(watermark.to_json())
        files = {path.name: _sha256(path) for path in sorted(draft.iterdir())}
        manifest = {"format": FORMAT, **self._run, "opt_steps": state.opt_steps, "score": state.score}
        (draft / "manifest.json").write_text(json.dumps({**manifest, "sha256": files}, indent=2) + "\n")
        put_in_place(draft, self.directory / str(state.opt_steps))
        for path in self._newest_first()[self._keep :]:
            shutil.rmtree(path)

    def newest(self) -> tuple[Mapping[str, torch.Tensor], dict[str, Any]] | None:
        """Tensors and values of the newest state that is whole; None if there are none at all.

        Raises:
            CheckpointError: none of them is whole.
        """
        found = self._newest_first()
        for path in found:
            try:
                return self._read(path)
            except CheckpointError as error:
                log.error("refused, the one before it is tried: %s", error)
        if found:
            raise CheckpointError(f"{self.directory}: none of {len(found)} checkpoints can be used, see above")
        return None

    def watermark(self) -> Watermark | None:
        """That of the newest state which has one that is whole; None if there is none.

        Of the state itself nothing else is asked: what was on disk then is there, whether or not it can be restored.
        """
        for path in self._newest_first():
            with suppress(CheckpointError):
                if "replay.json" in (manifest := self._manifest(path))["sha256"]:
                    return self._read_watermark(path, manifest)
        return None

    def _read_watermark(self, path: Path, manifest: dict[str, Any]) -> Watermark:
        with _readable(path):
            _require_whole(path, "replay.json", manifest)
            return Watermark.from_json((path / "replay.json").read_text())

    def _newest_first(self) -> list[Path]:
        return sorted((path for path in self.directory.glob("[0-9]*")), key=lambda path: -int(path.name))

    def _read(self, path: Path) -> tuple[Mapping[str, torch.Tensor], dict[str, Any]]:
        manifest = self._manifest(path)
        with _readable(path):
            for name in ("state.json", "state.safetensors"):
                _require_whole(path, name, manifest)
            return load_file(path / "state.safetensors"), json.loads((path / "state.json").read_text())

    def _manifest(self, path: Path) -> dict[str, Any]:
        with _readable(path):
            manifest: dict[str, Any] = json.loads((path / "manifest.json").read_text())
            expected = {"format": FORMAT, "run_id": self._run["run_id"], "opt_steps": int(path.name)}
            for key, value in expected.items():
                if manifest[key] != value:
                    raise CheckpointError(f"{path}: {key}: expected {value}, found {manifest[key]}")
            return manifest


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Make a CheckpointError of whatever shows that a state cannot be read."""
    try:
        yield
    except (OSError, LookupError, TypeError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{path}: no readable checkpoint: {error!r}") from error


def _require_whole(path: Path, name: str, manifest: Mapping[str, Any]) -> None:
    if _sha256(path / name) != manifest["sha256"][name]:
        raise CheckpointError(f"{path}: {name} is damaged: its SHA-256 is not the manifest's")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _require_numbers(state: StateOfRun) -> None:
    """Infinity may be meant, as in a mask; NaN never is."""
    for name, tensor in state.tensors.items():
        if tensor.is_floating_point() and bool(torch.isnan(tensor).any()):
            raise CheckpointError(f"opt step {state.opt_steps}: expected numbers, found NaN in {name}")
