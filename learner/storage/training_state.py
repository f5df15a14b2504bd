"""Checkpoints to resume from, ``checkpoints/{opt_steps}/``: with the replay they are all that a resumed run needs.

    manifest.json       format, run, incarnation, opt steps, configuration's hash, SHA-256 of the other files
    state.json          counters and random generators
    state.safetensors   networks, targets, optimisers
    replay.json         the watermark: the extent of the replay that is on disk (``learner.replay.recovery``)

Each directory is complete or missing. Hashes reveal a file that a disk has damaged; then the previous checkpoint is
read.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from common.agents.tensor_copies import copy_to_cpu
from common.data import Snapshot, to_json
from common.depth import ANY_NUMBER, parse_json
from common.errors import CheckpointError
from common.interfaces import TrainingState
from learner.replay.recovery import Watermark
from learner.shared.durable import READ_TRIES, locate, put_in_place, read_whole, remove, removing_unfinished
from learner.storage.checkpoint import Saves
from learner.storage.rundir import list_numbered

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Moment:
    """A moment of training, counted over all lives of the run."""

    opt_steps: int
    samples_total: int
    """Steps ever stored in the replay, or self-contained items."""
    seconds: float
    samples_elsewhere: int = 0
    """Steps that the other ranks have stored."""


BIRTH: Final = Moment(0, 0, 0.0)
"""The moment at which a new run with an empty replay begins."""
FORMAT: Final = 1
AGENT: Final = "agent."
"""The names of the agent's tensors begin with this."""
CPU_GENERATOR, CUDA_GENERATOR = "torch.cpu", "torch.cuda"


@dataclass(frozen=True)
class RunState:
    """A run between two opt steps, as the files of a checkpoint hold it.

    Tensors are copies on the CPU, and all other values are one JSON text. So neither can change while it waits to be
    written.
    """

    opt_steps: int
    tensors: dict[str, torch.Tensor]
    values: str

    @classmethod
    def take(
        cls,
        moment: Moment,
        agent: TrainingState,
        parts: Mapping[str, Snapshot],
        device: torch.device,
    ) -> RunState:
        """Copy the state of a run.

        Args:
            moment: the present moment.
            agent: the agent's state; its tensors may be live.
            parts: the states of all other parts, by name; their arrays may be live.
            device: the learner trains on it, so its random generator is kept beside that of the CPU.
        """
        tensors = {f"{AGENT}{name}": tensor for name, tensor in agent.tensors.items()}
        for part, snapshot in parts.items():
            tensors |= {f"{part}.{name}": torch.from_numpy(array) for name, array in snapshot.arrays.items()}
        tensors[CPU_GENERATOR] = torch.get_rng_state()  # A user's network may draw from torch's own generators.
        if device.type == "cuda":
            tensors[CUDA_GENERATOR] = torch.cuda.get_rng_state(device)
        values = {
            "agent": agent.values,
            "learner": {"moment": asdict(moment)},
            **{name: snapshot.values for name, snapshot in parts.items()},
        }
        texts = [f'"{name}": {to_json(found, f"the state of {name}")}' for name, found in values.items()]
        return cls(moment.opt_steps, copy_to_cpu(tensors), f"{{{', '.join(texts)}}}")

    @cached_property
    def _parsed(self) -> dict[str, Any]:
        parsed: dict[str, Any] = parse_json(self.values, **ANY_NUMBER)
        return parsed

    @property
    def moment(self) -> Moment:
        """The moment of training at which the state was taken."""
        return Moment(**self._parsed["learner"]["moment"])

    def agent(self) -> TrainingState:
        """The state of the agent."""
        return TrainingState(self._tensors_below(AGENT), self._parsed["agent"])

    def part(self, name: str) -> Snapshot | None:
        """The state of another part of the run; None if the run had no such part."""
        if name not in self._parsed:
            return None
        arrays = {key: tensor.numpy() for key, tensor in self._tensors_below(f"{name}.").items()}
        return Snapshot(self._parsed[name], arrays)

    def restore_generators(self, device: torch.device) -> None:
        """Set torch's own random generators, of the CPU and of ``device``."""
        if CPU_GENERATOR in self.tensors:
            torch.set_rng_state(self.tensors[CPU_GENERATOR])
        if CUDA_GENERATOR in self.tensors and device.type == "cuda":
            torch.cuda.set_rng_state(self.tensors[CUDA_GENERATOR], device)

    def _tensors_below(self, prefix: str) -> dict[str, torch.Tensor]:
        """The tensors whose names begin with ``prefix``, by the rest of their names."""
        return {name.removeprefix(prefix): t for name, t in self.tensors.items() if name.startswith(prefix)}


class StateFiles:
    """Writes the checkpoints of one run.

    Args:
        directory: of all checkpoints.
        run: the entries about the run in every manifest, such as ``run_id``.
        saves: allows and counts them.
        keep: the number of checkpoints that stay, the newest ones: a damaged one must not be the last.
    """

    def __init__(self, directory: Path, run: Mapping[str, Any], saves: Saves, keep: int = 3) -> None:
        self.directory, self.saves = directory, saves
        self._run, self._keep = run, keep

    def write(self, state: RunState, watermark: Watermark | None = None) -> None:
        """Write a checkpoint that outlasts a power cut, then remove the oldest checkpoints beyond ``keep``.

        Args:
            state: of the run.
            watermark: the extent of the replay that is on disk; None if it is not known.

        Raises:
            CheckpointError: it cannot be written, or holds NaN and would be useless; earlier checkpoints stay.
        """
        with removing_unfinished(self.directory / f".{state.opt_steps}.part") as draft, self.saves.saving(draft):
            _require_no_nan(state)
            self._write(state, watermark, draft)
        self.saves.count("state")

    def remove_after(self, opt_steps: int) -> None:
        """Remove the checkpoints of later opt steps.

        Raises:
            CheckpointError: a checkpoint cannot be removed.
        """
        try:
            for path in list_numbered(self.directory):
                if int(path.name) > opt_steps:
                    remove(path)
        except OSError as error:
            raise CheckpointError(f"{self.directory}: a later checkpoint cannot be removed: {error}") from error

    def _write(self, state: RunState, watermark: Watermark | None, draft: Path) -> None:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        save_file(state.tensors, draft / "state.safetensors")
        (draft / "state.json").write_text(state.values)
        if watermark is not None:
            (draft / "replay.json").write_text(watermark.to_json())
        files = {path.name: _sha256(path) for path in sorted(draft.iterdir())}
        manifest = {"format": FORMAT, **self._run, "opt_steps": state.opt_steps}
        (draft / "manifest.json").write_text(json.dumps({**manifest, "sha256": files}, indent=2) + "\n")
        put_in_place(draft, self.directory / str(state.opt_steps))
        earlier = [path for path in list_numbered(self.directory) if int(path.name) <= state.opt_steps]
        for path in earlier[self._keep :]:
            remove(path)


def read_newest_state(directory: Path, run_id: str) -> RunState | None:
    """Read the newest checkpoint that is whole; None if there is no checkpoint at all.

    Args:
        directory: of all checkpoints; a learner may write and remove checkpoints meanwhile.
        run_id: a checkpoint of another run is refused.

    Raises:
        CheckpointError: none of the checkpoints is whole.
    """
    for _ in range(READ_TRIES):
        found = list_numbered(directory)
        for path in found:
            try:
                return read_whole(path, partial(_read_state, run_id=run_id, opt_steps=int(path.name)))
            except CheckpointError as error:
                if locate(path) is None:
                    break  # The learner has removed it, and a newer one is there.
                log.error("this checkpoint is refused, and the checkpoint before it is tried: %s", error)
        else:
            if found:
                raise CheckpointError(f"{directory}: none of {len(found)} checkpoints can be used, see above")
            return None
    raise CheckpointError(f"{directory}: each of {READ_TRIES} checkpoints was removed while it was read; try again")


def read_newest_watermark(directory: Path, run_id: str) -> Watermark | None:
    """Read the watermark of the newest checkpoint that has a whole one; None if there is none.

    The other files of that checkpoint need not be whole: rows that were on disk then are still there.
    """
    for path in list_numbered(directory):
        with suppress(CheckpointError), _reading(path):
            manifest = _read_manifest(path, run_id, int(path.name))
            if "replay.json" in manifest["sha256"]:
                _require_whole(path, "replay.json", manifest)
                return Watermark.from_json((path / "replay.json").read_text())
    return None


def _read_state(path: Path, run_id: str, opt_steps: int) -> RunState:
    manifest = _read_manifest(path, run_id, opt_steps)
    with _reading(path):
        for name in ("state.json", "state.safetensors"):
            _require_whole(path, name, manifest)
        tensors, values = load_file(path / "state.safetensors"), (path / "state.json").read_text()
        return RunState(manifest["opt_steps"], tensors, values)


def _read_manifest(path: Path, run_id: str, opt_steps: int) -> dict[str, Any]:
    with _reading(path):
        manifest: dict[str, Any] = parse_json((path / "manifest.json").read_text())
        expected = {"format": FORMAT, "run_id": run_id, "opt_steps": opt_steps}
        for key, value in expected.items():
            if manifest[key] != value:
                raise CheckpointError(f"{path}: {key}: expected {value}, found {manifest[key]}")
        return manifest


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise a CheckpointError for any error that shows that the files of a checkpoint cannot be read."""
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


def _require_no_nan(state: RunState) -> None:
    """Raise if a tensor holds NaN. Infinity may be intended, as in a mask; NaN never is."""
    for name, tensor in state.tensors.items():
        if tensor.is_floating_point() and bool(torch.isnan(tensor).any()):
            raise CheckpointError(f"opt step {state.opt_steps}: expected numbers, found NaN in {name}")
