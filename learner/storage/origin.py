"""Where a new run begins from: the policy of an earlier run and, on request, other parts of that run.

``OPTIONS`` names the parts that can be taken beside the policy's weights. A future part, such as running means of
observations, gets a name there and a line in ``Origin``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from common.config.nested import parse_yaml
from common.config.run_config import RunConfig
from common.data import Column, Schema
from common.errors import CheckpointError, ConfigError, RunDirectoryError
from common.hints import nearest_path
from common.interfaces import TrainingState
from common.lanes.policy import set_opt_steps
from common.parts import Parts
from common.plugins.part_config import PluginConfig
from common.plugins.part_loading import load_part
from common.settings import Settings, validate
from learner.replay.memory import Layout
from learner.shared.durable import has_file
from learner.storage.checkpoint import load_params
from learner.storage.rundir import list_states, read_identity
from learner.storage.training_state import read_newest_state

log = logging.getLogger(__name__)
RANDOM_START: Final = "random_opts"
"""The parameter of agents that act at random until they have taken this many opt steps."""


def require_same_spaces(run: Path, schema: Schema) -> None:
    """Check that the rows of an earlier run have the observations and actions of this one.

    Nothing is checked if the earlier run has no replay of this release, or has self-contained items.

    Raises:
        CheckpointError: a column or the bounds of an action differ; the message names both spaces.
    """
    with suppress(RunDirectoryError):
        before = Layout.read(run / "shared" / "replay").schema
        if not (before.is_rows and schema.is_rows):
            return
        for space in ("obs", "action"):
            theirs, ours = before.named(space), schema.named(space)
            if theirs != ours or (space == "action" and _bounds(theirs) != _bounds(ours)):
                raise CheckpointError(
                    f"{run}: expected the spaces of this run's environment, {_describe(ours)}, found "
                    f"{_describe(theirs)}"
                )


def find_differences(before: Mapping[str, Any], agent: PluginConfig) -> list[str]:
    """The settings in which two agents differ, each with both values, defaults included.

    Args:
        before: the section ``agent`` of the earlier run; empty if it is not known.
        agent: the agent of this run.
    """
    target = before.get("target", agent.target)
    if target != agent.target:
        return [f"agent.target: {target} there, {agent.target} here"]
    if not before:
        return []
    theirs, ours = (_fill_in(agent.target, params) for params in (before.get("params", {}), agent.params))
    return [
        f"agent.params.{key}: {_show(theirs, key)} there, {_show(ours, key)} here"
        for key in {**ours, **theirs}
        if theirs.get(key) != ours.get(key) and key != RANDOM_START
    ]


def act_by_policy(config: RunConfig) -> RunConfig:
    """The configuration of a run that begins with a trained agent: no random actions at the start.

    If the configuration itself sets the number of opt steps with random actions, that number stays.
    """
    model = _settings_of(config.agent.target)
    if model is None or RANDOM_START not in model.model_fields or RANDOM_START in config.agent.params:
        return config
    agent = config.agent.model_copy(update={"params": {**config.agent.params, RANDOM_START: 0}})
    return config.model_copy(update={"agent": agent})


def _fill_in(target: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a part with its defaults, as values for JSON; without defaults if these are not known."""
    with suppress(ConfigError):
        if (model := _settings_of(target)) is not None:
            return validate(model, params).model_dump(mode="json")
    plain: dict[str, Any] = json.loads(json.dumps(params))  # A tuple in one of two files is a list in the other.
    return plain


def _settings_of(target: str) -> type[Settings] | None:
    """The class that describes an agent's parameters; None if the agent has none."""
    model = getattr(load_part(target), "Config", None)
    return model if isinstance(model, type) and issubclass(model, Settings) else None


def _show(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key]) if key in values else "nothing"


def _bounds(columns: tuple[Column, ...]) -> list[object]:
    return [column.domain and column.domain.to_json() for column in columns]


def _describe(columns: tuple[Column, ...]) -> str:
    return ", ".join(f"{column} ({column.domain})" if column.domain else str(column) for column in columns)


OPTIMISER: Final = "optimiser"
REPLAY: Final = "replay"
OPTIONS: Final = {
    OPTIMISER: "the agent as it last trained: networks, targets, optimisers, counters and generators",
    REPLAY: "the rows of its replay",
}


@dataclass(frozen=True)
class Origin:
    """A saved agent from which a new run begins.

    Args:
        path: as the user named it.
        run: the directory of the run that saved the agent.
        model: the directory that is loaded, of a policy or of a checkpoint in ``checkpoints/``.
        options: names out of ``OPTIONS``.
        meta: the meta data in ``model``: ``run_id``, ``opt_steps`` and, unless it is missing, ``config``.
    """

    path: Path
    run: Path
    model: Path
    options: frozenset[str]
    meta: Mapping[str, Any]
    _agent: TrainingState

    @property
    def has_replay(self) -> bool:
        """Whether the new run gets the rows of the earlier run's replay too."""
        return REPLAY in self.options

    @classmethod
    def at(cls, path: Path, options: frozenset[str] = frozenset()) -> Origin:
        """Find and read a saved agent.

        Args:
            path: a run's directory, of which ``best/`` is read, or else ``final/``; or the directory of a policy, such
                as ``RUN/best``. With ``OPTIMISER`` it is a run's directory, of which the newest checkpoint is read.
            options: names out of ``OPTIONS``.

        Raises:
            CheckpointError: there is no such agent, or it cannot be read.
            RunDirectoryError: with ``OPTIMISER``, neither ``run.json`` nor a checkpoint says which run it is.
        """
        if OPTIMISER in options:
            return cls._at_checkpoint(path, options)
        model = _find_policy(path)
        params, meta = load_params(model)
        return cls(path, path if model != path else path.resolve().parent, model, options, meta, TrainingState(params))

    @classmethod
    def _at_checkpoint(cls, path: Path, options: frozenset[str]) -> Origin:
        if not list_states(path):
            raise CheckpointError(
                f"{path}: expected a run's directory with checkpoints/, where optimisers are kept, found none"
                f"{nearest_path(path)}"
            )
        run_id, checkpoints = read_identity(path).run_id, path / "checkpoints"
        state = read_newest_state(checkpoints, run_id)
        if state is None:
            raise CheckpointError(f"{checkpoints}: its states were removed while they were read; try again")
        meta = {"run_id": run_id, "opt_steps": state.opt_steps, "config": _read_config(path)}
        return cls(path, path, checkpoints / str(state.opt_steps), options, meta, state.agent())

    def restore(self, parts: Parts, config: RunConfig) -> None:
        """Load the saved agent into the agent of the new run; log the settings in which the two agents differ.

        Raises:
            CheckpointError: the two agents do not fit; the message names both, and the settings in which they differ.
        """
        require_same_spaces(self.run, parts.schema)
        before = self.meta.get("config", {}).get("agent", {})
        differences = "; ".join(find_differences(before, config.agent))
        try:
            if OPTIMISER in self.options:
                parts.agent.load_training_state(self._agent)
                set_opt_steps(parts.agent, 0)  # Rows and models of the new run count from 0.
            else:
                parts.agent.load_params(self._agent.tensors)
        except (CheckpointError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{self.model}: {before.get('target', 'an agent')} was saved there, which does not fit "
                f"{config.agent.target} of this run ({differences or 'their settings are the same'}): {error}"
            ) from error
        if differences:
            log.warning("the agent goes on with other settings than in %s: %s", self.run, differences)

    def record(self) -> dict[str, Any]:
        """The entry about this origin in ``run.json`` of the new run."""
        return {
            "path": str(self.model.resolve()),
            "run_id": self.meta["run_id"],
            "opt_steps": self.meta["opt_steps"],
            "with": sorted(self.options),
        }

    def __str__(self) -> str:
        beside = f", with {' and '.join(sorted(self.options))}" if self.options else ""
        return f"{self.model} (run {self.meta['run_id']}, opt step {self.meta['opt_steps']}{beside})"


def _read_config(run: Path) -> dict[str, Any]:
    """The configuration of a run as its file has it; empty if the file cannot be read."""
    try:
        found = parse_yaml((run / "config.yaml").read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return {}  # The configuration is used only to explain why two agents do not fit.
    return found if isinstance(found, dict) else {}


def _find_policy(path: Path) -> Path:
    """The directory of a policy: ``path`` itself, or a directory in the run at ``path``."""
    for found in (path, path / "best", path / "final"):
        if has_file(found, "model.safetensors"):
            return found
    raise CheckpointError(
        f"{path}: expected a run's directory with best/ or final/, or the directory of a policy, with "
        f"model.safetensors, found neither{nearest_path(path)}"
    )
