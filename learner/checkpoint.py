"""Saved models: ``best/``, ``{opt_steps}/`` and ``final/``, each complete or not there.

A checkpoint is a directory with ``model.safetensors`` and ``meta.json``; the meta data names environment and agent,
so a policy can be loaded without the run's configuration.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from common.config import ActorConfig
from common.errors import CheckpointError
from common.interfaces import Agent
from common.parts import build_parts
from common.settings import validate


@dataclass
class SaveCounts:
    """What was saved so far: ``best``, ``final`` and ``periodic`` ones; ``last_at`` in Unix seconds."""

    kinds: Counter[str] = field(default_factory=lambda: Counter(best=0, final=0, periodic=0))
    failures: int = 0
    seconds: float = 0.0
    last_at: float | None = None

    def saved(self, name: str) -> None:
        """A checkpoint of this name is complete."""
        self.kinds[name if name in self.kinds else "periodic"] += 1
        self.last_at = time.time()


@dataclass(frozen=True)
class Checkpoints:
    """Saves an agent under the run directory.

    Args:
        directory: where the checkpoints go.
        config: what was built; written into every checkpoint.
        run_id: written into every checkpoint.
    """

    directory: Path
    config: ActorConfig
    run_id: str
    counts: SaveCounts = field(default_factory=SaveCounts)

    def save(self, name: str, agent: Agent, **meta: Any) -> Path:
        """Write a checkpoint and put it in the place of one of the same name.

        Raises:
            CheckpointError: it cannot be written; what was there before is still there.
        """
        return self.keep(self.draft(f".{name}.part", agent, **meta), name)

    def draft(self, name: str, agent: Agent, **meta: Any) -> Path:
        """Write a checkpoint that need not last: a power cut may take it (syncing is two thirds of what saving costs).

        Raises:
            CheckpointError: it cannot be written.
        """
        draft = self.directory / name
        with self._writing(draft):
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            save_file(
                {k: v.detach().cpu().contiguous() for k, v in agent.save_params().items()}, draft / "model.safetensors"
            )
            _write_meta(draft, {"run_id": self.run_id, **meta, "config": self.config.model_dump(mode="json")})
        return draft

    def keep(self, draft: Path, name: str, **meta: Any) -> Path:
        """Make a draft the checkpoint of this name, with further meta data; from now on it lasts.

        A kill leaves the new one or the one before, at worst under its old name, where ``load_agent`` finds it.

        Raises:
            CheckpointError: it cannot be kept; what was there before is still there.
        """
        target, old = self.directory / name, _old(self.directory / name)
        with self._writing(target):
            try:
                _put_back(old, target)
                if meta:
                    _write_meta(draft, {**_read_meta(draft), **meta})
                for file in draft.iterdir():
                    _sync(file)
                if target.exists():
                    target.rename(old)
                draft.rename(target)
                _sync(self.directory)
                shutil.rmtree(old, ignore_errors=True)
            except (OSError, ValueError):
                _put_back(old, target)
                raise
        self.counts.saved(name)
        return target

    @contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        """Count time and failures; what goes wrong becomes a CheckpointError that names the path."""
        began = time.perf_counter()
        try:
            yield
        except (OSError, ValueError, SafetensorError, RuntimeError) as error:
            self.counts.failures += 1
            raise CheckpointError(f"{path}: cannot be saved: {error}") from error
        finally:
            self.counts.seconds += time.perf_counter() - began

    def discard(self, name: str) -> None:
        """Remove a checkpoint or a draft, if there is one."""
        shutil.rmtree(self.directory / name, ignore_errors=True)


def _write_meta(directory: Path, meta: dict[str, Any]) -> None:
    (directory / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")


def _read_meta(directory: Path) -> dict[str, Any]:
    meta: dict[str, Any] = json.loads((directory / "meta.json").read_text())
    return meta


def _old(target: Path) -> Path:
    """Where a checkpoint waits while another takes its place."""
    return target.with_name(f".{target.name}.old")


def _put_back(old: Path, target: Path) -> None:
    """Undo the first half of an exchange that was cut off; sweep up after one that was not."""
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
    elif old.exists():
        old.rename(target)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def load_params(directory: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The parameters and the meta data of a checkpoint.

    Raises:
        CheckpointError: the directory holds no readable checkpoint.
    """
    try:
        return load_file(directory / "model.safetensors"), _read_meta(directory)
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{directory}: no readable checkpoint: {error}") from error


def load_agent(directory: Path) -> tuple[Agent, ActorConfig, dict[str, Any]]:
    """Build the agent of a checkpoint, in eval mode, with the configuration and meta data it was saved with.

    Raises:
        CheckpointError: the directory holds no readable checkpoint.
    """
    if not directory.exists() and _old(directory).exists():
        directory = _old(directory)
    params, meta = load_params(directory)
    config = validate(ActorConfig, meta.pop("config"))
    parts = build_parts(config, seed=0)
    parts.close()
    parts.agent.load_params(params)
    parts.agent.eval()
    return parts.agent, config, meta
