"""``learner-server``: owns the replay and the optimiser, and serves actors."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from common.config import RunConfig, dump_config, load_config
from common.errors import BudgetExhaustedError, ConfigError, CrossborderError
from common.log import setup_logging
from common.signals import StopSignals
from learner.learner import Outcome
from learner.stat import actor_stats_fmt

EXAMPLES = """examples:
  learner-server --config configs/cartpole.yaml                     then start actor-worker, here or elsewhere
  learner-server --config configs/cartpole.yaml --local-actors 2    with two actors on this host
  learner-server --config configs/cartpole.yaml --set seed=3 --set agent.params.lr=0.001
  learner-server --config configs/cartpole.yaml --listen 0.0.0.0:50051 --insecure

exit codes: docs/exit-codes.md"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "learner-server", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--config", required=True, type=Path, metavar="FILE", help="the run's YAML file")
    made.add_argument(
        "--set", action="append", default=[], metavar="KEY.KEY=VALUE", dest="overrides", help="override one value"
    )
    made.add_argument("--listen", metavar="HOST:PORT", help="where actors connect; port 0 takes a free one")
    made.add_argument("--insecure", action="store_true", help="allow an address beyond loopback, unencrypted")
    made.add_argument("--run-dir", type=Path, metavar="DIR", help="where everything is written")
    made.add_argument("--local-actors", type=int, default=0, metavar="N", help="actors on this host (default: 0)")
    made.add_argument("--show-config", action="store_true", help="print the resolved configuration and exit")
    made.add_argument("--check", action="store_true", help="build everything once, then exit")
    made.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    return made


def _config(arguments: argparse.Namespace) -> RunConfig:
    overrides = list(arguments.overrides)
    if arguments.listen:
        overrides.append(f"server.listen={json.dumps(arguments.listen)}")
    if arguments.insecure:
        overrides.append("server.insecure=true")
    if arguments.run_dir:
        overrides.append(f"run_dir={json.dumps(str(arguments.run_dir))}")
    if arguments.local_actors < 0:
        raise ConfigError(f"--local-actors: expected 0 or more, found {arguments.local_actors}")
    config = load_config(arguments.config, overrides)
    config.check()
    return config


def _check(config: RunConfig) -> None:
    from learner.parts import build_parts

    parts = build_parts(config)
    parts.env.close()
    sys.stdout.write(f"{config.name}: good. Items: {', '.join(map(str, parts.schema.columns))}\n")


def _train(config: RunConfig, local_actors: int, console: Console | None, signals: StopSignals) -> None:
    from learner.progress import Progress
    from learner.server import LearnerServer

    with LearnerServer(config, local_actors) as server:
        signals.on_stop = server.learner.request_stop
        with Progress(server.status, console):
            result = server.train()
    best = f"best evaluation {result.best_score:.1f}"
    sys.stdout.write(
        f"\n{config.name}: {result.outcome.value}; {best} after {result.opt_steps} opt steps and "
        f"{result.samples_total} items\n\n{result.trainer.fmt()}\n{actor_stats_fmt(result.actors)}\n"
        f"run directory: {result.run_dir} (best/, final/, config.yaml, metrics.csv, learning_curve.png)\n"
    )
    target = config.trainer.target_score
    if target is not None and result.outcome in (Outcome.MAX_OPTS, Outcome.MAX_SECONDS):
        raise BudgetExhaustedError(f"{result.outcome.value}, but the target score {target:g} was not reached: {best}")


def main(argv: list[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    console = Console(stderr=True) if sys.stderr.isatty() else None
    setup_logging(arguments.log_level, console=console)
    signals = StopSignals()
    try:
        config = _config(arguments)
        if arguments.show_config:
            sys.stdout.write(dump_config(config))
        elif arguments.check:
            _check(config)
        else:
            _train(config, arguments.local_actors, console, signals)
    except CrossborderError as error:
        sys.stderr.write("".join(f"learner-server: {line}\n" for line in str(error).splitlines()))
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("learner-server: interrupted\n")
    return signals.exit_code


if __name__ == "__main__":
    sys.exit(main())
