"""Saved policies for an acting service, with or without a recording of their episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from actor.episode_recording import make_directory
from crossborder.serving.recorded_policy import load_recorded_policy
from crossborder.serving.served_policy import ServedPolicy
from crossborder.serving.serving_config import ServingConfig
from learner.evaluation.policy import load_policy

RECORD_SECONDS: Final = 10.0
"""The time for writing the last episodes."""


@contextmanager
def opening(places: Mapping[str, Path], allow: Sequence[str], config: ServingConfig) -> Iterator[list[ServedPolicy]]:
    """A context with saved policies; their last episodes are written at its end.

    Args:
        places: by the name of each policy its directory; see ``ServedPolicy`` and ``load_policy``.
        allow: see ``load_policy``.
        config: of the service. The episodes of a policy with a name are recorded in a directory of this name.

    Raises:
        CrossborderError: see ``load_policy``.
    """
    with ExitStack() as stack:
        yield [stack.enter_context(_opening(name, place, allow, config)) for name, place in places.items()]


@contextmanager
def _opening(name: str, place: Path, allow: Sequence[str], config: ServingConfig) -> Iterator[ServedPolicy]:
    if config.record is None:
        policy = load_policy(place, allow, config.device)
        if config.explore:
            policy.explore()
        yield ServedPolicy(policy, config, name=name)
        return
    directory = config.record / name
    make_directory(directory)
    player, recording = load_recorded_policy(place, allow, directory, explores=config.explore, device=config.device)
    try:
        yield ServedPolicy(player, config, player, name)
        player.flush()
    finally:
        recording.close(RECORD_SECONDS)
