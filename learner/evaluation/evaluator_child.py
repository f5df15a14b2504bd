"""The evaluator process: evaluates one candidate after another while training goes on.

Start: it reads the boot line from stdin, builds environment, agent and evaluator, and says that it is ready.
Then each line on stdin asks for an evaluation of the candidate. The answer is an event with the candidate's opt steps.
End: when stdin closes, the running evaluation ends at its next environment step, and then the process ends.

There are two threads. The main thread reads the lines and evaluates. The lifeline rings a bell while the trainer holds
the other end of stdin, even during an evaluation that takes hours. When stdin closes, the lifeline makes the
environment raise an error, and kills the process if the error does not end it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import torch

from actor.sampling.guard import watch_envs
from common.agents.products import choose_products
from common.config.run_config import RunConfig
from common.errors import CrossborderError
from common.evaluation import open_evaluator, score_agent
from common.interfaces import Agent, Evaluator
from common.lanes.lanes import Busy
from common.lanes.watched_envs import EvaluationAbandoned, Watch
from common.parts import build_parts
from common.process.child import Event, read_boot, say, say_error, wait_for_hang_up
from common.process.log import setup_logging
from common.process.signals import leave_to_parent
from common.settings import HomePath, Settings, validate
from learner.shared.bell import Bell
from learner.storage.checkpoint import load_params

log = logging.getLogger(__name__)
GRACE_SECONDS = 1.0
"""Seconds for the main thread to end once the trainer is gone."""
BEAT_SECONDS = 0.5
"""Seconds between two signs of life."""


class EvaluatorBoot(Settings):
    """The boot line."""

    config: RunConfig
    candidate: HomePath
    """The directory of the policy that is evaluated; the trainer replaces its contents between two evaluations."""
    bell_fd: int
    """The write end of the bell."""


def serve(boot: EvaluatorBoot, trainer_gone: threading.Event) -> None:
    """Answer the trainer's lines until it is gone.

    Raises:
        CrossborderError: a part cannot be built.
    """
    torch.set_num_threads(boot.config.trainer.torch_threads)
    choose_products(boot.config.trainer.products)
    parts = build_parts(boot.config, seed=boot.config.seed, n_envs=0)
    busy = Busy()
    # If an environment hangs, this process ends, and the trainer's supervisor starts another one.
    with ExitStack() as stack, suppress(EvaluationAbandoned), watch_envs(busy, boot.config.env, say_error):
        evaluator = open_evaluator(boot.config, parts.frames, Watch(trainer_gone, busy), stack)
        say({"ready": True})
        for _ in sys.stdin:
            say(_answer(evaluator, parts.agent, boot.candidate))


def _answer(evaluator: Evaluator, agent: Agent, candidate: Path) -> Event:
    """Evaluate the candidate; return the event for the trainer, which holds the score or the error."""
    try:
        params, meta = load_params(candidate)
        agent.load_params(params)
        score, record, seconds = score_agent(evaluator, agent)
        return {"opt_steps": meta["opt_steps"], "score": score, "record": record, "seconds": seconds}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the trainer raises it
        failure = _typed(error)
        return {"failure": str(failure), "exit_code": failure.exit_code}


def _typed(error: Exception | SystemExit) -> CrossborderError:
    """An error that can cross to the trainer. The traceback of any other error is logged here, where it is known."""
    if isinstance(error, CrossborderError):
        return error
    log.error("the evaluator failed", exc_info=error)
    return CrossborderError(f"{type(error).__name__}: {error}")


def _end_with_trainer(trainer_gone: threading.Event, bell: Bell) -> None:
    """The lifeline: ring the bell until the trainer closes stdin, then end this process."""
    while not wait_for_hang_up(BEAT_SECONDS):
        bell.ring()
    trainer_gone.set()
    time.sleep(GRACE_SECONDS)
    os.killpg(0, signal.SIGKILL)  # The group has the processes that an environment may have started too.


def main() -> int:
    """Run the process; return its exit code."""
    leave_to_parent()
    setup_logging(form="json")
    trainer_gone = threading.Event()
    try:
        boot = validate(EvaluatorBoot, read_boot())
        threading.Thread(
            target=_end_with_trainer, args=(trainer_gone, Bell(-1, boot.bell_fd)), name="lifeline", daemon=True
        ).start()
        serve(boot, trainer_gone)
    except Exception as error:  # noqa: BLE001 - the trainer raises it
        return say_error(_typed(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
