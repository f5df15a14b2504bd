"""A learner host in the process of a benchmark, with ingest in a separate process and default push settings."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.config.run_config import load_config
from crossborder.certificates.authority import make_files
from learner.loop.server import LearnerServer

FREE = ("server.listen=127.0.0.1:0", "metrics.listen=null")
KINDS: dict[str, tuple[str, ...]] = {
    "cartpole": (),
    "atari": (
        "env={target: benchmarks.screens:Screens, frame_stack: 4}",
        "agent={target: common.agents.dqn:DQN, params: {units: [1]}}",
        "replay.capacity=20000",
    ),
}


@contextmanager
def serve_learner(kind: str, *more: str, encrypted: bool = False) -> Iterator[LearnerServer]:
    """Start a learner host; it trains only if the caller steps it.

    Args:
        kind: of ``KINDS``.
        more: settings, ``key=value``.
        encrypted: with TLS and a token.
    """
    with tempfile.TemporaryDirectory() as directory:
        secured = encrypt(Path(directory)) if encrypted else ()
        ours = (
            *FREE,
            *secured,
            *KINDS[kind],
            "push={}",  # The defaults.
            "replay.view={}",  # One step in a transition.
            "replay.samples_per_insert=null",
            f"run_dir={directory}/run",
            *more,
        )
        with LearnerServer(load_config(Path("configs/cartpole.yaml"), ours)) as server:
            yield server


def encrypt(directory: Path) -> tuple[str, ...]:
    """Make certificates and tokens in a directory; the settings that name them."""
    make_files(directory, ["localhost"], 1, renew=False)
    tls = f"server.tls={{certificate: {directory}/server.pem, key: {directory}/server.key}}"
    return tls, f"server.actor_token_file={directory}/actor.token"
