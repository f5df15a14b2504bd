"""``policy-eval``: scores a saved policy, and films it; it needs nothing but the run's directory."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from common.process.command import Parser, add_settings, as_path, at_least
from crossborder.policies.policy_command import make_policy_parser, policy_command_of

if TYPE_CHECKING:
    from common.config.actor_config import ActorConfig
    from common.lanes.lanes import AnyEnv
    from common.plugins.part_config import EnvConfig

EXAMPLES = """\
  policy-eval --run runs/cartpole-20261121-085026-3f2a                     the best policy, scored as in training
  policy-eval --run runs/cartpole-20261121-085026-3f2a --checkpoint final --episodes 100 --json
  policy-eval --run runs/cartpole-20261121-085026-3f2a --episodes 3 --record-video
  policy-eval --run runs/chess-20261121-085026-3f2a --against runs/chess-20261120-090000-11aa/best
  policy-eval --run runs/drone-20261121-085026-3f2a --allow drone                       a run with your own environment
  policy-eval --run runs/drone-20261121-085026-3f2a --allow drone --set env.params.wind=2.0    the same in another wind
"""


def parser() -> Parser:
    """The command's options."""
    made = make_policy_parser("policy-eval", __doc__, EXAMPLES)
    made.add_value("--episodes", "N", "the number of episodes (default: that of the run's evaluator)", int)
    made.add_value("--seed", "N", "episode i starts from seed + i (default: 1000)", at_least(0))
    add_settings(
        made, "settings", "another value of a setting of env or evaluator, with which the policy was saved; repeatable"
    )
    made.add_value(
        "--against",
        "DIR",
        "the directory of a saved policy that plays all seats but one, which changes from game to game; the "
        "answer has the shares of games that were won, drawn and lost",
        as_path,
    )
    made.add_argument(
        "--record-video",
        nargs="?",
        const=True,
        type=as_path,
        metavar="DIR",
        help="film every episode as MP4 (default: RUN/videos)",
    )
    return made


def _film(arguments: argparse.Namespace, config: EnvConfig) -> AbstractContextManager[AnyEnv]:
    from crossborder.policies.video import filming

    directory = arguments.run / "videos" if arguments.record_video is True else arguments.record_video
    return filming(config, directory, arguments.checkpoint)


def _evaluate(arguments: argparse.Namespace) -> Mapping[str, object]:
    from common.errors import PluginError
    from common.evaluation import EVALUATION_SEED, open_evaluator, score_agent
    from common.lanes.watched_envs import Watch
    from learner.storage.checkpoint import load_parts

    built, saved, meta = load_parts(arguments.run / arguments.checkpoint, arguments.allow)
    parts = _change(saved, arguments)
    if arguments.against is not None:
        parts = _play_against(arguments.against, parts, arguments.allow)
    seed = parts.evaluator.params.get("seed", EVALUATION_SEED) if arguments.seed is None else arguments.seed
    film = None if arguments.record_video is None else partial(_film, arguments)
    with ExitStack() as stack:
        try:
            watch = Watch(threading.Event())
            evaluator = open_evaluator(parts, None, watch, stack, film, policy=built.frames, seed=seed)
        except PluginError as error:
            if parts.env.spaces is None:
                raise
            raise PluginError(
                f"{error}; the run describes its spaces (env.spaces), so only its actors may have the environment: "
                "let an actor score policies (evaluator.process: actor)"
            ) from error
        score, record, _ = score_agent(evaluator, built.agent)
    asked = {"episodes": parts.evaluator.episodes, "seed": seed}
    place = str(arguments.run / arguments.checkpoint)
    return {"checkpoint": place, "opt_steps": meta["opt_steps"], **asked, "score": score, **record}


def _play_against(policy: Path, config: ActorConfig, allow: Sequence[str]) -> ActorConfig:
    """The settings, with a saved policy as the opponent."""
    from common.errors import ConfigError
    from common.plugins.shipped import SHORT_NAMES
    from learner.storage.checkpoint import load_policy

    if config.env.target != SHORT_NAMES["pettingzoo"]:
        raise ConfigError(f"--against: expected an environment of PettingZoo (pettingzoo), found {config.env.target}")
    params = {**config.env.params, "players": load_policy(policy, allow)}
    return config.model_copy(update={"env": config.env.model_copy(update={"params": params})})


def _change(saved: ActorConfig, arguments: argparse.Namespace) -> ActorConfig:
    """The settings that were saved with the policy, with the changes that the command line asks for.

    A value of ``env.params`` replaces one of ``env.eval_params`` too, since an evaluation builds the environment.
    """
    from common.config.nested import assign
    from common.errors import ConfigError
    from common.settings import validate

    values = saved.model_dump(mode="json")
    values["env"] = saved.env.for_evaluation().model_dump(mode="json")
    if arguments.episodes is not None:
        values["evaluator"]["episodes"] = arguments.episodes
    for setting in arguments.settings:
        if setting.partition(".")[0] not in ("env", "evaluator"):
            raise ConfigError(f"--set {setting}: expected a setting of env or evaluator: the agent is as it was saved")
        assign(values, setting)
    changed = validate(type(saved), values)
    if arguments.seed is not None:
        changed.evaluator.params.pop("seed", None)
    return changed


main = policy_command_of(parser, _evaluate)
