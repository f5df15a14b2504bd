"""``crossborder-teleop``: a person plays an environment by a device, and each episode becomes a demonstration."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

from common.errors import ConfigError
from common.plugins.part_config import EnvConfig
from common.plugins.shipped import write_out
from common.process.command import Parser, add_settings, as_path, at_least, service_of
from common.process.signals import StopSignals
from common.process.standard_streams import answers
from common.settings import validate

EXAMPLES = """\
  crossborder-teleop --config my_robot.yaml --record demonstrations/
  crossborder-teleop --config my_robot.yaml --record demonstrations/ --episodes 20
  crossborder-teleop --config my_robot.yaml --record demonstrations/ --set env.rate_hz=10

The section env of the configuration names the environment; its wrappers name the device: see docs/people.md. No learner
is needed. Ctrl-C ends it; an episode that has not ended then is not recorded.
"""


def parser() -> Parser:
    """The command's options."""
    made = Parser("crossborder-teleop", __doc__, EXAMPLES)
    made.add_value("--config", "FILE", "the YAML file of the run, or its env", as_path, is_required=True)
    made.add_value("--record", "DIR", "the directory that gets each episode as an .npz file", as_path, is_required=True)
    made.add_value("--episodes", "N", "how many episodes to record (default: until Ctrl-C)", at_least(1))
    add_settings(made, "overrides", "replace one value of the YAML file")
    return made


def _read_env(path: Path, overrides: list[str]) -> EnvConfig:
    """The section ``env`` of a configuration; the other sections may be missing."""
    from common.config.run_config import read_values

    values = write_out(read_values(path, overrides))
    if "env" not in values:
        raise ConfigError(f"{path}: expected a section env, found {', '.join(map(str, values)) or 'nothing'}")
    config = validate(EnvConfig, values["env"], "env")
    config.check("env", frozenset())
    return config


def _record(arguments: argparse.Namespace, signals: StopSignals) -> None:
    from actor.episode_recording import make_directory
    from crossborder.people.teleoperating import record_demonstrations

    stopped = threading.Event()
    signals.on_stop = stopped.set
    config = _read_env(arguments.config, arguments.overrides)
    make_directory(arguments.record)
    kept = record_demonstrations(
        config, arguments.record, arguments.episodes, stopped, lambda line: answers().write(f"{line}\n")
    )
    answers().write(f"{kept} episodes in {arguments.record}\n")


main = service_of(parser, _record)
