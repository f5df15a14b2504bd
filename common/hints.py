"""Hints at the name that a user probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

IN_OTHER_LIBRARIES: Final = {
    "buffer_size": "replay.capacity",
    "eval_freq": "trainer.eval_interval",
    "exploration_final_eps": "exploration.epsilons",
    "gamma": "agent.params.discount_factor",
    "gradient_steps": "replay.samples_per_insert",
    "learning_rate": "agent.params.lr",
    "learning_starts": "trainer.warmup_period",
    "n_envs": "envs_per_actor",
    "n_eval_episodes": "evaluator.episodes",
    "net_arch": "agent.params.units",
    "policy_kwargs": "agent.params.units or agent.params.network",
    "target_update_interval": "agent.params.soft_update_interval",
    "total_timesteps": "trainer.max_env_steps",
    "train_freq": "replay.samples_per_insert",
}
"""Names of stable-baselines3, CleanRL and RLlib, and ours: docs/from-other-libraries.md."""


def closest(name: str, known: Iterable[str]) -> str:
    """A hint such as `` (did you mean 'capacity'?)``; empty if no known name resembles the name, in any case."""
    by_lower = {each.lower(): each for each in sorted(known)}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f" (did you mean '{by_lower[close[0]]}'?)" if close else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as `` (did you mean 'capacity'?)``, or the list of all known names."""
    names = sorted(each for each in known if each)  # The path of observations without parts is "".
    ours = IN_OTHER_LIBRARIES.get(name, "")
    if (last := ours.rpartition(".")[2]) in names:
        return f" (did you mean '{last}'?)"
    if ours:
        return f" (here it is {ours})"
    return closest(name, names) or f" (known: {', '.join(names) or 'none'})"


def nearest_path(path: Path) -> str:
    """A hint at the file or directory whose path resembles the missing ``path``, or at where a relative path begins."""
    try:
        if path.exists():
            return ""
        if not path.parent.is_dir():
            return nearest_path(path.parent)
        close = difflib.get_close_matches(path.name, (beside.name for beside in path.parent.iterdir()), n=1)
        start = "" if path.is_absolute() else f" (in {Path.cwd()})"
    except OSError:  # No hint for a user who may not read the directory.
        return ""
    return f" (did you mean '{path.with_name(close[0])}'?)" if close else start
