"""``policy-eval``: scores a saved policy, and films it; it needs nothing but the run's directory."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING

from common.process.command import Parser
from learner.commands.policy_command import make_policy_parser, run_policy_command

if TYPE_CHECKING:
    from common.config.run_config import EvaluatorConfig
    from common.envs import Env
    from common.plugins.part_config import PluginConfig

log = logging.getLogger(__name__)
EXAMPLES = """\
  policy-eval --run runs/cartpole-20261121-085026-3f2a                     the best policy, scored as in training
  policy-eval --run runs/cartpole-20261121-085026-3f2a --checkpoint final --episodes 100 --json
  policy-eval --run runs/cartpole-20261121-085026-3f2a --episodes 3 --record-video
"""


def parser() -> Parser:
    """The command's options."""
    made = make_policy_parser("policy-eval", __doc__, EXAMPLES)
    made.add_argument("--episodes", type=int, metavar="N", help="episodes (default: as the run's evaluator)")
    made.add_argument("--seed", type=int, metavar="N", help="episode i starts from seed + i (default: the run's)")
    made.add_argument(
        "--record-video", nargs="?", const="", metavar="DIR", help="film every episode as MP4 (default: RUN/videos)"
    )
    return made


def _environment(arguments: argparse.Namespace, config: PluginConfig) -> AbstractContextManager[Env]:
    from common.envs import build_env
    from learner.evaluation.video import filming

    if arguments.record_video is None:
        return closing(build_env(config))
    return filming(config, Path(arguments.record_video or arguments.run / "videos"), arguments.checkpoint)


def _evaluate(arguments: argparse.Namespace) -> Mapping[str, object]:
    from learner.evaluation.evaluator import build_evaluator
    from learner.storage.checkpoint import load_agent

    agent, parts, meta = load_agent(arguments.run / arguments.checkpoint)
    config = _evaluator(arguments, meta.get("evaluator"))
    with _environment(arguments, parts.env.for_evaluation()) as env:
        evaluation = build_evaluator(env, config).evaluate(agent)
    record = {key: float(value) for key, value in evaluation.record.items()}
    place, episodes = str(arguments.run / arguments.checkpoint), {"episodes": config.episodes, "seed": config.seed}
    return {"checkpoint": place, "opt_steps": meta["opt_steps"], **episodes, "score": float(evaluation.score), **record}


def _evaluator(arguments: argparse.Namespace, saved: Mapping[str, object] | None) -> EvaluatorConfig:
    """The evaluator that was saved with the policy, with the changes that the command line asks for."""
    from common.config.run_config import EvaluatorConfig
    from common.settings import validate

    if saved is None:
        log.warning("the checkpoint, of crossborder 0.1, does not name the run's evaluator: the default one scores it")
    asked = {key: value for key in ("episodes", "seed") if (value := getattr(arguments, key)) is not None}
    return validate(EvaluatorConfig, {**(saved or {}), **asked})


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_policy_command(parser(), argv, _evaluate)


if __name__ == "__main__":
    sys.exit(main())
