"""Where a new run begins from: the policy of an earlier run, and whatever else of that run is asked for.

``OPTIONS`` names what can be taken beside the weights. Whatever a later agent or environment keeps beside its networks
(running means of observations, say) gets a name there and a line in ``Origin``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from common.config.run_config import RunConfig
from common.errors import CheckpointError
from common.hints import nearest_path
from common.interfaces import Agent, TrainingState
from learner.shared.durable import old_of
from learner.storage.checkpoint import SaveCounts, load_params
from learner.storage.checkpointer import AGENT, below
from learner.storage.rundir import identity_of, states_in
from learner.storage.training_state import StateFiles

OPTIMISER: Final = "optimiser"
REPLAY: Final = "replay"
OPTIONS: Final = {
    OPTIMISER: "the agent as it last trained: networks, targets, optimisers, counters and generators",
    REPLAY: "the items of its replay",
}


@dataclass(frozen=True)
class Origin:
    """A saved agent from which a new run begins.

    Args:
        path: as the user named it.
        run: the directory of the run that saved it.
        model: what is loaded: a policy's directory, or that of a state in ``checkpoints/``.
        options: names out of ``OPTIONS``.
        saved: what the checkpoint says of itself: ``run_id``, ``opt_steps`` and, of a policy, ``config``.
    """

    path: Path
    run: Path
    model: Path
    options: frozenset[str]
    saved: Mapping[str, Any]
    _agent: TrainingState

    @property
    def has_replay(self) -> bool:
        """Whether the items are wanted too."""
        return REPLAY in self.options

    @classmethod
    def at(cls, path: Path, options: frozenset[str] = frozenset()) -> Origin:
        """Find and read what is at ``path``: a run's directory, or that of a policy such as ``RUN/best``.

        Of a run's directory ``best/`` is taken, or else ``final/``; with ``OPTIMISER`` the newest state of training.

        Raises:
            CheckpointError: there is nothing of the kind, or it cannot be read.
            RunDirectoryError: ``OPTIMISER`` is asked for and it cannot be told which run it is.
        """
        if OPTIMISER in options:
            return cls._of_training(path, options)
        model = _policy_in(path)
        params, meta = load_params(model)
        return cls(path, path if model != path else path.parent, model, options, meta, TrainingState(params))

    @classmethod
    def _of_training(cls, path: Path, options: frozenset[str]) -> Origin:
        if not states_in(path):
            raise CheckpointError(
                f"{path}: expected a run's directory with checkpoints/, which optimisers are kept in, found none"
                f"{nearest_path(path)}"
            )
        run_id = identity_of(path).run_id
        found = StateFiles(path / "checkpoints", {"run_id": run_id}, 1, SaveCounts()).newest()
        if found is None:
            raise CheckpointError(f"{path / 'checkpoints'}: its states were removed while they were read; try again")
        tensors, values = found
        opt_steps = values["learner"]["moment"]["opt_steps"]
        model = path / "checkpoints" / str(opt_steps)
        saved = {"run_id": run_id, "opt_steps": opt_steps}
        return cls(path, path, model, options, saved, TrainingState(below(AGENT, tensors), values["agent"]))

    def restore(self, agent: Agent, config: RunConfig) -> None:
        """Give an agent what was saved.

        Raises:
            CheckpointError: it does not fit, naming both.
        """
        try:
            if OPTIMISER in self.options:
                agent.load_training_state(self._agent)
            else:
                agent.load_params(self._agent.tensors)
        except (CheckpointError, LookupError, RuntimeError, TypeError, ValueError) as error:
            before = self.saved.get("config", {}).get("agent", {}).get("target", "an agent")
            raise CheckpointError(
                f"{self.model}: {before} was saved there, which does not fit {config.agent.target} of this run: {error}"
            ) from error

    def record(self) -> dict[str, Any]:
        """What ``run.json`` of the new run says of it."""
        return {
            "path": str(self.model.resolve()),
            "run_id": self.saved["run_id"],
            "opt_steps": self.saved["opt_steps"],
            "with": sorted(self.options),
        }

    def __str__(self) -> str:
        beside = f", with {' and '.join(sorted(self.options))}" if self.options else ""
        return f"{self.model} (run {self.saved['run_id']}, opt step {self.saved['opt_steps']}{beside})"


def _policy_in(path: Path) -> Path:
    """The directory of the policy that ``path`` means."""
    saved = (path / name for name in ("best", "final"))
    for found in (path, *(place for policy in saved for place in (policy, old_of(policy)))):
        if (found / "model.safetensors").exists():
            return found
    raise CheckpointError(
        f"{path}: expected a run's directory with best/ or final/, or a checkpoint's directory with "
        f"model.safetensors, found neither{nearest_path(path)}"
    )
