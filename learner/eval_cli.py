"""``policy-eval``: scores a saved policy; it needs nothing but the run's directory."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from common.errors import CrossborderError
from common.log import setup_logging

EXAMPLES = """examples:
  policy-eval --run runs/cartpole-20261121-085026-3f2a                     the best policy, 20 episodes
  policy-eval --run runs/cartpole-20261121-085026-3f2a --checkpoint final --episodes 100
  policy-eval --run runs/cartpole-20261121-085026-3f2a --json

exit codes: docs/exit-codes.md"""


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = argparse.ArgumentParser(
        "policy-eval", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--run", required=True, type=Path, metavar="DIR", help="the run's directory")
    made.add_argument("--checkpoint", default="best", metavar="NAME", help="best, final or an opt step (default: best)")
    made.add_argument("--episodes", type=int, default=20, metavar="N", help="greedy episodes (default: 20)")
    made.add_argument("--seed", type=int, default=0, metavar="N", help="episode i starts from seed + i (default: 0)")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    return made


def _evaluate(arguments: argparse.Namespace) -> dict[str, object]:
    from common.config import EvaluatorConfig
    from common.envs import build_env
    from common.settings import validate
    from learner.checkpoint import load_agent
    from learner.evaluator import DefaultEvaluator

    config = validate(EvaluatorConfig, {"episodes": arguments.episodes, "seed": arguments.seed})
    agent, parts, meta = load_agent(arguments.run / arguments.checkpoint)
    env = build_env(parts.env.for_evaluation())
    record = DefaultEvaluator(env, config).evaluate(agent).record
    env.close()
    scores = {key: float(value) for key, value in record.items()}
    return {"checkpoint": str(arguments.run / arguments.checkpoint), "opt_steps": meta["opt_steps"], **scores}


def main(argv: list[str] | None = None) -> int:
    """The command; its exit code."""
    arguments = parser().parse_args(argv)
    setup_logging("WARNING")
    try:
        found = _evaluate(arguments)
    except CrossborderError as error:
        sys.stderr.write(f"policy-eval: {error}\n")
        return error.exit_code
    if arguments.json:
        sys.stdout.write(json.dumps(found) + "\n")
    else:
        sys.stdout.write("".join(f"{key}: {value}\n" for key, value in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
