"""An actor that evaluates: it scores the trainer's candidates, and records no steps."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress

from actor.sampling.guard import Guard, NotReplacedError
from actor.stat import ActorCounters
from common.config.actor_config import ActorConfig
from common.data import NO_MODEL, Model, ModelVersion
from common.errors import PluginError
from common.evaluation import open_evaluator, score_agent
from common.lanes.watched_envs import EvaluationAbandoned, Watch
from common.parts import Parts
from common.process.child import RestartPolicy

log = logging.getLogger(__name__)
WAIT_SECONDS = 1.0


class CandidateScorer:
    """Scores candidates with the evaluator that the configuration names.

    When an evaluation raises, the scorer rebuilds the evaluator and its environments, and scores the candidate again.

    Args:
        config: names the environment and the evaluator, and says how often environments may be rebuilt.
        parts: with the agent, which adopts each candidate and acts greedily.
        counters: counts rebuilds and keeps the traceback for the learner.
        watch: over all environments of evaluations. Its event ends this actor, also during an evaluation.
        report: takes the version of each candidate, its score, its record, and the seconds that this took.

    Raises:
        CrossborderError: the evaluator or its environment cannot be built, or the environment has other spaces than
            that of training.
    """

    def __init__(
        self,
        config: ActorConfig,
        parts: Parts,
        counters: ActorCounters,
        watch: Watch,
        report: Callable[[ModelVersion, float, Mapping[str, float], float], None],
    ) -> None:
        self._config, self._parts, self._agent = config, parts, parts.agent
        self._watch, self._report = watch, report
        allowance = RestartPolicy(config.env.rebuilds_per_minute, 60.0)
        self._guard = Guard(self._open, allowance, counters, watch.busy, stopped=watch.abandoned)
        self._open()

    def _open(self) -> None:
        """Build the evaluator and its first environment."""
        self._envs = ExitStack()
        try:
            self._evaluator = open_evaluator(self._config, self._parts.frames, self._watch, self._envs)
        except BaseException:
            self.close()
            raise

    def run(self, wait_newer: Callable[[ModelVersion, float], Model | None], starts_anew: Callable[[], bool]) -> None:
        """Score each candidate until the actor has to stop or to start anew.

        A candidate that comes while another is scored is scored next; if several come, only the newest.

        Args:
            wait_newer: waits for a model that is newer than a version, for some seconds; see ``ModelFetcher``.
            starts_anew: whether the actor has to start anew.

        Raises:
            PluginError: the evaluator returns a value that is not finite.
            Exception: the evaluator or its environment raises more often than it may.
        """
        version = NO_MODEL
        try:
            with suppress(EvaluationAbandoned, NotReplacedError):
                while not (self._watch.abandoned.is_set() or starts_anew()):
                    model = wait_newer(version, WAIT_SECONDS)
                    if model is not None:
                        version = model.version
                        self._score(model)
        finally:
            self._watch.rest()

    def _score(self, model: Model) -> None:
        self._agent.sync_model(model)
        score, record, seconds = self._evaluate()
        self._watch.rest()  # The next candidate may come much later.
        if not all(map(math.isfinite, (score, *record.values()))):
            raise PluginError(f"evaluator: expected finite values, found the score {score} and {record}")
        log.info("the candidate of opt step %d scores %g", model.version.opt_steps, score)
        self._report(model.version, score, record, seconds)

    def _evaluate(self) -> tuple[float, dict[str, float], float]:
        while True:
            try:
                return score_agent(self._evaluator, self._agent)
            except Exception as error:  # noqa: BLE001 - it is logged, and raised if evaluations raise too often
                try:
                    self._guard.rebuild(error, self.close)
                finally:
                    self._watch.busy.since = math.inf

    def close(self) -> None:
        """Close all environments."""
        self._envs.close()
