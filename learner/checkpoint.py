"""Saved models: ``best/``, ``{opt_steps}/`` and ``final/``, each complete or not there.

A checkpoint is a directory with ``model.safetensors`` and ``meta.json``; the meta data names environment and agent,
so a policy can be loaded without the run's configuration.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from common.config import ActorConfig
from common.envs import build_env, spec_of
from common.errors import CheckpointError
from common.interfaces import Agent
from common.settings import validate


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

    def save(self, name: str, agent: Agent, **meta: Any) -> Path:
        """Write a checkpoint and put it in the place of one of the same name; a kill leaves one of the two.

        Raises:
            CheckpointError: it cannot be written; what was there before is still there.
        """
        target, part, old = (self.directory / n for n in (name, f".{name}.part", f".{name}.old"))
        try:
            for leftover in (part, old):
                shutil.rmtree(leftover, ignore_errors=True)
            part.mkdir(parents=True)
            save_file(
                {k: v.detach().cpu().contiguous() for k, v in agent.save_params().items()}, part / "model.safetensors"
            )
            whole = {"run_id": self.run_id, **meta, "config": self.config.model_dump(mode="json")}
            (part / "meta.json").write_text(json.dumps(whole, indent=2) + "\n")
            for file in part.iterdir():
                _sync(file)
            if target.exists():
                target.rename(old)
            part.rename(target)
            _sync(self.directory)
            shutil.rmtree(old, ignore_errors=True)
        except OSError as error:
            raise CheckpointError(f"{target}: cannot be saved: {error.strerror}") from error
        return target


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def load_agent(directory: Path) -> tuple[Agent, ActorConfig, dict[str, Any]]:
    """Build the agent of a checkpoint, in eval mode, with the configuration and meta data it was saved with.

    Raises:
        CheckpointError: the directory holds no readable checkpoint.
    """
    try:
        meta = json.loads((directory / "meta.json").read_text())
        params = load_file(directory / "model.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{directory}: no readable checkpoint: {error}") from error
    config = validate(ActorConfig, meta.pop("config"))
    env = build_env(config.env)
    agent: Agent = config.agent.build(spec=spec_of(env), seed=0, epsilon=0.0)
    env.close()
    agent.load_params(params)
    agent.eval()
    return agent, config, meta
