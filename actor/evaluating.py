"""An actor that evaluates: it scores the trainer's candidates, and records no steps."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from actor.client.fetcher import ModelFetcher
from actor.client.requests import CandidateScore
from common.config.run_config import ActorConfig
from common.data import NO_MODEL, Model
from common.envs import build_env
from common.evaluation import build_evaluator
from common.interfaces import Agent, Evaluator

log = logging.getLogger(__name__)
WAIT_SECONDS = 1.0


class CandidateScorer:
    """Scores candidates with the evaluator that the configuration names.

    Args:
        config: names the environment and the evaluator.
        agent: adopts each candidate and acts greedily.
        report: takes each score.
    """

    def __init__(self, config: ActorConfig, agent: Agent, report: Callable[[CandidateScore], None]) -> None:
        self._agent, self._report = agent, report
        make_env = partial(build_env, config.env.for_evaluation())
        self._env = make_env()
        self._evaluator: Evaluator = build_evaluator(self._env, config.evaluator, config.env.for_evaluation(), make_env)

    def run(self, models: ModelFetcher, stopped: threading.Event, starts_anew: Callable[[], bool]) -> None:
        """Score each candidate until the actor has to stop or to start anew.

        A candidate that comes while another is scored is scored next; if several come, only the newest.
        """
        version = NO_MODEL
        while not (stopped.is_set() or starts_anew()):
            model = models.wait_newer(version, WAIT_SECONDS)
            if model is not None:
                version = model.version
                self._score(model)

    def _score(self, model: Model) -> None:
        began = time.monotonic()
        self._agent.sync_model(model)
        self._agent.eval()
        found = self._evaluator.evaluate(self._agent)
        seconds = time.monotonic() - began
        record = {key: float(value) for key, value in found.record.items()}
        log.info("the candidate of opt step %d scores %g", model.version.opt_steps, found.score)
        self._report(CandidateScore(model.version, found.score, record, seconds))

    def close(self) -> None:
        """Close the first environment; an evaluator that makes others keeps them until the process ends."""
        self._env.close()
