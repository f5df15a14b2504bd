"""``policy-eval``: scores a saved policy, and films it; it needs nothing but the run's directory."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING

from common.command import Parser
from learner.saved import make_parser, run_command

if TYPE_CHECKING:
    from common.envs import Env
    from common.part_config import PluginConfig

EXAMPLES = """\
  policy-eval --run runs/cartpole-20261121-085026-3f2a                     the best policy, 20 episodes
  policy-eval --run runs/cartpole-20261121-085026-3f2a --checkpoint final --episodes 100 --json
  policy-eval --run runs/cartpole-20261121-085026-3f2a --episodes 3 --record-video
"""


def parser() -> Parser:
    """The command's options."""
    made = make_parser("policy-eval", __doc__, EXAMPLES)
    made.add_argument("--episodes", type=int, default=20, metavar="N", help="greedy episodes (default: 20)")
    made.add_argument("--seed", type=int, default=0, metavar="N", help="episode i starts from seed + i (default: 0)")
    made.add_argument(
        "--record-video", nargs="?", const="", metavar="DIR", help="film every episode as MP4 (default: RUN/videos)"
    )
    return made


def _environment(arguments: argparse.Namespace, config: PluginConfig) -> AbstractContextManager[Env]:
    from common.envs import build_env
    from learner.video import filmed

    if arguments.record_video is None:
        return closing(build_env(config))
    return filmed(config, Path(arguments.record_video or arguments.run / "videos"), arguments.checkpoint)


def _evaluate(arguments: argparse.Namespace) -> Mapping[str, object]:
    from common.config import EvaluatorConfig
    from common.settings import validate
    from learner.checkpoint import load_agent
    from learner.evaluator import DefaultEvaluator

    config = validate(EvaluatorConfig, {"episodes": arguments.episodes, "seed": arguments.seed})
    agent, parts, meta = load_agent(arguments.run / arguments.checkpoint)
    with _environment(arguments, parts.env.for_evaluation()) as env:
        record = DefaultEvaluator(env, config).evaluate(agent).record
    scores = {key: float(value) for key, value in record.items()}
    return {"checkpoint": str(arguments.run / arguments.checkpoint), "opt_steps": meta["opt_steps"], **scores}


def main(argv: list[str] | None = None) -> int:
    """The command; its exit code."""
    return run_command(parser(), argv, _evaluate)


if __name__ == "__main__":
    sys.exit(main())
