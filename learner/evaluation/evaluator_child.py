"""The evaluator process: scores one candidate after another while training goes on.

Start: boot line on stdin → environment, agent, evaluator built → one event that it is ready.
Then each line on stdin asks for a score of the candidate as it lies there; the event that answers names its opt steps.
End: stdin closed → the evaluation, if any, ends at its next environment step, or else the process does a little later.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import sys
import threading
import time
from contextlib import closing, nullcontext, suppress
from pathlib import Path

import torch

from actor.guard import Busy, Watchdog
from common.config.run_config import RunConfig
from common.errors import CrossborderError, EnvHungError
from common.interfaces import Agent, Evaluator
from common.parts import build_parts
from common.process.child import Event, say, say_error
from common.process.log import setup_logging
from common.settings import Settings, validate
from learner.evaluation.eval_env import build_eval_env
from learner.evaluation.evaluator import build_evaluator
from learner.evaluation.scoring import AbandonableEnv, EvaluationAbandoned
from learner.shared.bell import Bell
from learner.storage.checkpoint import load_params

log = logging.getLogger(__name__)
GRACE_SECONDS = 1.0
BEAT_SECONDS = 0.5


class EvaluatorBoot(Settings):
    """What the trainer tells its evaluator process on stdin."""

    config: RunConfig
    candidate: Path
    bell_fd: int
    """Write end of the bell that the child rings as a sign of life."""


def serve(boot: EvaluatorBoot, trainer_gone: threading.Event) -> None:
    """Answer until the trainer is gone.

    Raises:
        CrossborderError: a part cannot be built.
    """
    torch.set_num_threads(boot.config.trainer.torch_threads)
    parts = build_parts(boot.config, seed=boot.config.seed)
    parts.agent.eval()
    env = build_eval_env(boot.config.env, parts.env)
    busy, seconds = Busy(), boot.config.env.timeout_seconds
    watchdog = Watchdog(busy, seconds, _end_hung) if seconds else nullcontext()
    with closing(parts), closing(env), suppress(EvaluationAbandoned), watchdog:
        evaluator = build_evaluator(AbandonableEnv(env, trainer_gone, busy), boot.config.evaluator)
        say({"ready": True})
        for _ in sys.stdin:
            say(_answer(evaluator, parts.agent, boot.candidate))


def _end_hung(where: str) -> None:
    """End the process, since a thread cannot be ended; the trainer starts another."""
    log.error("an environment of the evaluation does not return:\n%s", where)
    os._exit(say_error(EnvHungError("an environment has not returned within env.timeout_seconds")))


def _answer(evaluator: Evaluator, agent: Agent, candidate: Path) -> Event:
    try:
        params, meta = load_params(candidate)
        agent.load_params(params)
        began = time.perf_counter()
        evaluation = evaluator.evaluate(agent)
        seconds = time.perf_counter() - began
        record = {key: float(value) for key, value in evaluation.record.items()}
        return {
            "opt_steps": meta["opt_steps"],
            "score": float(evaluation.score),
            "record": record,
            "seconds": seconds,
        }
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the trainer gets it
        failure = _typed(error)
        return {"failure": str(failure), "exit_code": failure.exit_code}


def _typed(error: Exception | SystemExit) -> CrossborderError:
    """The error itself, or one that names it; then its traceback is in the log."""
    if isinstance(error, CrossborderError):
        return error
    log.error("the evaluator failed", exc_info=error)
    return CrossborderError(f"{type(error).__name__}: {error}")


def _outlive_no_trainer(trainer_gone: threading.Event, bell: Bell) -> None:
    """Until the other end of stdin is closed show life, whatever the main thread does; then see that it ends."""
    hang_up = select.poll()
    hang_up.register(sys.stdin.fileno(), 0)  # Hang-ups are always reported; lines are left to the main thread.
    while not hang_up.poll(1000 * BEAT_SECONDS):
        bell.ring()
    trainer_gone.set()
    time.sleep(GRACE_SECONDS)
    os.killpg(0, signal.SIGKILL)  # With what the environment may have started.


def main() -> int:
    setup_logging(form="json")
    trainer_gone = threading.Event()
    try:
        boot = validate(EvaluatorBoot, json.loads(sys.stdin.readline()))
        threading.Thread(
            target=_outlive_no_trainer, args=(trainer_gone, Bell(-1, boot.bell_fd)), name="lifeline", daemon=True
        ).start()
        serve(boot, trainer_gone)
    except Exception as error:  # noqa: BLE001 - the trainer gets it
        return say_error(_typed(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
