"""Saved policies: ``best/``, ``{opt_steps}/`` and ``final/``, each complete or missing.

A saved policy is a directory with ``model.safetensors`` and ``meta.json``. The meta data names environment and agent,
so a policy can be loaded without the run's configuration.
"""

from __future__ import annotations

import itertools
import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from actor.allowance import Allowance
from common.agents.products import choices
from common.agents.tensor_copies import copy_to_cpu
from common.agents.torch_device import making_float32, require_device
from common.config.actor_config import ActorConfig
from common.depth import ANY_NUMBER, parse_json
from common.errors import CheckpointError, ConfigError
from common.hints import nearest_path
from common.home import expand_path
from common.interfaces import Agent
from common.lanes.policy import Policy
from common.parts import Parts, build_parts
from common.settings import validate
from common.wire.trust import ANY
from learner.shared.durable import locate, put_in_place, read_whole, removing_unfinished, sync

_EVERY_META: Final = {"config": dict, "opt_steps": int, "run_id": str}
"""By key that the meta data of every policy have, the type of its value."""


@dataclass
class Saves:
    """Allows and counts saves, from any thread: ``best``, ``final`` and ``periodic`` ones of policies, and checkpoints.

    Args:
        guard: called before each save; raises a CheckpointError if the directory is no longer the run's.
    """

    guard: Callable[[], None] = lambda: None
    kinds: Counter[str] = field(default_factory=lambda: Counter(best=0, final=0, periodic=0, state=0))
    """How often each was saved; a checkpoint counts as ``state``."""
    failures: int = 0
    seconds: float = 0.0
    last_at: dict[str, float] = field(default_factory=dict)
    """When the last of each kind was complete, in Unix seconds."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, name: str) -> None:
        """Count the policy or checkpoint of this name, which is complete now."""
        kind = name if name in self.kinds else "periodic"
        with self._lock:
            self.kinds[kind] += 1
            self.last_at[kind] = time.time()

    @contextmanager
    def saving(self, path: Path) -> Iterator[None]:
        """Count time and failures of a save in this context, after ``guard`` has allowed it.

        Raises:
            CheckpointError: the save was refused or failed; the message names the path.
        """
        began, failed = time.perf_counter(), 1
        try:
            self.guard()
            yield
            failed = 0
        except (OSError, ValueError, SafetensorError, RuntimeError) as error:
            raise CheckpointError(f"{path}: cannot be saved: {error}") from error
        finally:
            with self._lock:
                self.failures += failed
                self.seconds += time.perf_counter() - began


@dataclass(frozen=True)
class Checkpoints:
    """Saves policies of an agent under the run directory.

    Args:
        directory: of the run.
        config: names the parts from which ``load_agent`` builds the agent; written with every policy.
        run_id: written with every policy.
        saves: allows and counts them.
    """

    directory: Path
    config: ActorConfig
    run_id: str
    saves: Saves = field(default_factory=Saves)

    def save(self, name: str, agent: Agent, **meta: Any) -> Path:
        """Save a policy in the place of the policy of the same name.

        Raises:
            CheckpointError: it cannot be written; the former policy is still there.
        """
        with removing_unfinished(self.directory / f".{name}.part") as draft:
            return self.keep(self.draft(draft.name, agent, **meta), name)

    def draft(self, name: str, agent: Agent, **meta: Any) -> Path:
        """Write a draft of a policy without syncing it to disk, since syncing takes two thirds of the time of a save.

        A power cut may destroy the draft.

        Raises:
            CheckpointError: it cannot be written.
        """
        draft = self.directory / name
        with self.saves.saving(draft):
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            save_file(copy_to_cpu(agent.save_params()), draft / "model.safetensors")
            made = {"products": choices().describe(), "config": self.config.model_dump(mode="json")}
            _write_meta(draft, {"run_id": self.run_id, **meta, **made})
        return draft

    def keep(self, draft: Path, name: str, **meta: Any) -> Path:
        """Make a draft the policy of this name, with further meta data; from now on it outlasts a power cut.

        A kill leaves the new policy or the former policy, and readers find either of them, whole.

        Raises:
            CheckpointError: it cannot be kept; the former policy is still there.
        """
        target = self.directory / name
        with self.saves.saving(target):
            if meta:
                _write_meta(draft, {**_read_meta(draft), **meta})
            put_in_place(draft, target)
        self.saves.count(name)
        return target

    def has(self, name: str) -> bool:
        """Whether there is a policy of this name, or would be if the run's directory were in its place."""
        if locate(self.directory / name) is not None:
            return True
        try:
            self.saves.guard()
        except CheckpointError:
            return True  # The whole directory is away: nobody has taken this policy from it.
        return False

    def discard(self, name: str) -> None:
        """Remove a policy or a draft, if there is one."""
        shutil.rmtree(self.directory / name, ignore_errors=True)


@dataclass(frozen=True)
class Best:
    """The policy in ``best/``, without its parameters."""

    opt_steps: int
    score: float
    scored_by: dict[str, Any]
    """The settings on which the score depends, see ``describe_scoring``."""


def read_best(run: Path) -> Best | None:
    """The policy in ``best/`` of a run's directory; None if there is none that can be read, with its parameters."""
    try:
        _, meta = load_params(run / "best")
        score, opt_steps = float(meta["score"]), int(meta["opt_steps"])
        return Best(opt_steps, score, describe_scoring(validate(ActorConfig, meta.pop("config"))))
    except (CheckpointError, LookupError, TypeError, ValueError, ConfigError):
        return None


def describe_scoring(config: ActorConfig) -> dict[str, Any]:
    """The settings on which a score depends, beside the policy: scores of others cannot be compared with it.

    The number of episodes is not among them: it changes how exact a score is, but not what it measures.
    """
    env = config.env.for_evaluation()
    return {
        "env": env.model_dump(mode="json", include={"target", "params", "wrappers"}),
        "evaluator": config.evaluator.model_dump(mode="json", include={"target", "params", "max_steps"}),
    }


def set_best_aside(run: Path, best: Best | None) -> Path:
    """Give ``best/`` a name that no policy has yet, ``best-{opt_steps}`` or this and a further number; return its path.

    If it cannot be read, the name is ``best-damaged``, or this and a further number.

    Raises:
        CheckpointError: it cannot be renamed.
    """
    name = f"best-{'damaged' if best is None else best.opt_steps}"
    path = run / name
    for number in itertools.count(2):
        if not path.exists():
            break
        path = run / f"{name}-{number}"
    try:
        (locate(run / "best") or run / "best").rename(path)
        sync(run)
    except OSError as error:
        raise CheckpointError(f"{run / 'best'}: cannot be renamed to {path.name}: {error.strerror}") from error
    return path


def _write_meta(directory: Path, meta: dict[str, Any]) -> None:
    (directory / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")


def _read_meta(directory: Path) -> dict[str, Any]:
    meta: dict[str, Any] = parse_json((directory / "meta.json").read_text(), **ANY_NUMBER)
    return meta


def _require_whole(meta: object) -> None:
    """Check that the meta data of a policy have the keys of ``_EVERY_META``."""
    found = meta if isinstance(meta, dict) else {}
    missing = [key for key, kind in _EVERY_META.items() if not isinstance(found.get(key), kind)]
    if missing:
        raise ValueError(f"meta.json: expected {', '.join(_EVERY_META)}, found no valid {', '.join(missing)}")


def load_params(directory: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The parameters and the meta data of a policy, which a learner may replace meanwhile.

    Raises:
        CheckpointError: the directory holds no readable checkpoint.
    """
    try:
        return read_whole(directory, _read_policy)
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{directory}: no readable checkpoint: {error}{_hint(directory)}") from error


def _hint(directory: Path) -> str:
    """A hint at the policies of a run, if the directory is that of a run, or at a directory of a similar name."""
    inside = (directory / name for name in ("best", "final") if (directory / name).is_dir())
    return next((f" (did you mean '{policy}'?)" for policy in inside), nearest_path(directory))


def _read_policy(directory: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    params, meta = load_file(directory / "model.safetensors"), _read_meta(directory)
    _require_whole(meta)
    return params, meta


def load_agent(directory: str | Path, allow: Sequence[str] = ()) -> tuple[Agent, ActorConfig, dict[str, Any]]:
    """Build the agent of a policy, in eval mode; return it with the configuration and the meta data of the policy.

    Of the parts that ``meta.json`` names, only those are imported that come with crossborder or that ``allow`` names,
    so a stranger's policy runs none of its author's code.

    Args:
        directory: of the policy, such as ``RUN/best``.
        allow: your own parts and packages that the policy may name, as ``module:attr`` or ``module``; or ``any``.

    Raises:
        CheckpointError: the directory holds no readable checkpoint.
        ConfigError: the home of the path is not known; ``allow`` is neither a list of texts nor a text; the policy has
            an unknown setting or parameter, as one of another release may.
        PluginError: the policy names a part that is not allowed, or a part cannot be built.
    """
    parts, config, meta = load_parts(expand_path(directory, "directory"), allow)
    return parts.agent, config, meta


def load_parts(
    directory: Path, allow: Sequence[str] = (), device: str = "cpu"
) -> tuple[Parts, ActorConfig, dict[str, Any]]:
    """Build the parts of a policy on a device, and load its agent; see ``load_agent``."""
    names = (allow,) if isinstance(allow, str) else allow  # ``ANY in "company"`` is true, and would allow all code.
    if not isinstance(names, Collection) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"allow: expected a list of your own parts, such as ['my_parts'], found {allow!r:.80}")
    device = str(require_device(device, "device"))
    params, meta = load_params(directory)
    config = validate(ActorConfig, meta.pop("config") | {"step_processor": None})  # It says only what is recorded.
    if ANY not in names:
        Allowance(tuple(names), f"the policy in {directory}").check(config, evaluates=True)
    with making_float32(), torch.device("cpu"):
        parts = build_parts(config, seed=0, device=device, n_envs=0)
    parts.agent.load_params(params)
    parts.agent.eval()
    return parts, config, meta


def load_policy(directory: str | Path, allow: Sequence[str] = (), device: str = "cpu") -> Policy:
    """Load a saved policy.

    Args:
        directory: of the policy, such as ``RUN/best``.
        allow: your own parts and packages that the policy may name, as ``module:attr`` or ``module``, such as
            ``["my_parts"]``; or ``any``. The parts that come with crossborder need no entry.
        device: where the policy computes, as in ``trainer.device``.

    Raises:
        CheckpointError: the directory holds no readable checkpoint.
        ConfigError: see ``load_agent``; or torch cannot use the device here.
        PluginError: the policy names a part that is not allowed, or the agent or the environment that knows the
            observation space cannot be built.
    """
    parts, _, meta = load_parts(expand_path(directory, "directory"), allow, device)
    return Policy(parts.agent, parts.frames, parts.frame_stack, meta["opt_steps"])
