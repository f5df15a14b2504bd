"""Scores of the trainer's candidates, which evaluating actors report: the newest one lies in ``shared/score.json``."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any, Final

from common.bad_values import LARGEST_VALUE
from common.config.actor_config import EvaluatorConfig
from common.data import NO_MODEL, ModelVersion
from common.depth import parse_json
from common.errors import RefusedError
from common.process.log import LogThrottle
from common.shared.slots import ModelSlots
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import version_from_pb
from learner.ingest.registry import MAX_RETURN
from learner.shared.control import ControlBlock
from learner.shared.durable import replace_text

log = logging.getLogger(__name__)
FAILURES_LOGGED_EVERY: Final = 60.0
MAX_KEYS: Final = 64
"""The most different keys in the records of all scores, and the most characters of a key: each key becomes a column of
metrics.csv."""
_ROUNDING: Final = 1e-6
"""The relative rounding error that a mean may have."""


class CandidateScores:
    """Checks scores and hands them to the trainer, each candidate's once.

    Args:
        path: of the file, which is replaced as a whole: ``incarnation`` and ``opt_steps`` of the candidate, ``score``,
            ``record``, ``seconds``, and the ``actor_id`` that scored it.
        candidates: of the trainer.
        control: its word ``scores`` rises after each replacement, so the trainer looks at the file only then.
        largest: see ``largest_return``; None: scores need not be means of returns.
    """

    def __init__(self, path: Path, candidates: ModelSlots, control: ControlBlock, largest: float | None = None) -> None:
        self._path, self._candidates, self._control, self._largest = path, candidates, control, largest
        self._failures = LogThrottle(FAILURES_LOGGED_EVERY)
        self._keys = set[str]()
        """All keys that a record has had."""
        self._newest = self._read()
        if self._newest != NO_MODEL:  # The process before this one may have been killed before it raised the word.
            control.scores += 1

    def _read(self) -> ModelVersion:
        """The last candidate whose score an earlier ingest process has handed over."""
        try:
            found = parse_json(self._path.read_text())
            self._keys.update(found["record"])
            return ModelVersion(int(found["incarnation"]), int(found["opt_steps"]))
        except FileNotFoundError:
            return NO_MODEL
        except (OSError, ValueError, LookupError, TypeError) as error:
            log.warning("%s cannot be read (%s); the trainer may be told one score twice", self._path, error)
            return NO_MODEL

    def take(self, score: pb.Score, actor_id: int) -> None:
        """Hand a score over, unless that candidate or a later one has been scored already.

        A candidate from before the learner's last start is left out too: an actor that was scoring it while the learner
        was killed reports it to the resumed learner, which no longer waits for it. A score that cannot be written is
        handed over with a later report: the actor repeats it in each.

        Raises:
            RefusedError: it is not the score of a candidate.
        """
        version = version_from_pb(score.model)
        if version <= self._newest or version.incarnation < self._control.incarnation:
            return
        _check(score, self._candidates.newest(), self._keys)
        if self._largest is not None:
            _check_returns(score, self._largest)
        found: dict[str, Any] = {
            "incarnation": version.incarnation,
            "opt_steps": version.opt_steps,
            "score": score.score,
        }
        found |= {"record": dict(score.record), "seconds": score.seconds, "actor_id": actor_id}
        try:
            replace_text(self._path, json.dumps(found) + "\n")
        except OSError as error:
            if (missed := self._failures.due()) is not None:
                log.error("a score waits: %s cannot be written: %s (%d more before it)", self._path, error, missed)
            return
        # The trainer reads the file after it has seen the word change, so the file comes first.
        self._control.scores += 1
        self._newest = version
        self._keys.update(score.record)
        log.info("actor %d scores the candidate of opt step %d: %g", actor_id, version.opt_steps, score.score)


def largest_return(evaluator: EvaluatorConfig) -> float | None:
    """The largest absolute return of an episode that the shipped evaluator plays; its score is the mean of returns.

    It adds up at most ``max_steps`` rewards, and no row may have a reward beyond ``LARGEST_VALUE``. None: a user's
    own evaluator may score otherwise.
    """
    return LARGEST_VALUE * evaluator.max_steps if evaluator.target == EvaluatorConfig().target else None


def _check(score: pb.Score, newest: ModelVersion, known: set[str]) -> None:
    version = version_from_pb(score.model)
    if version > newest:
        raise RefusedError(f"score: expected a candidate up to {newest}, found {version}", "report")
    keys = known | score.record.keys()
    if len(keys) > MAX_KEYS or any(len(key) > MAX_KEYS or not key.isprintable() for key in score.record):
        raise RefusedError(
            f"score: expected at most {MAX_KEYS} different keys in the records of all scores, each of at most "
            f"{MAX_KEYS} printable characters, found {len(keys)}",
            "report",
        )
    values = (score.score, *score.record.values())
    if not all(abs(value) <= MAX_RETURN for value in values) or not 0 <= score.seconds < math.inf:
        raise RefusedError(
            f"score: expected finite values up to {MAX_RETURN:g}, found {score.score} and {dict(score.record)}",
            "report",
        )


def _check_returns(score: pb.Score, largest: float) -> None:
    """Check that a score can be the mean of the returns that its record tells."""
    least, most = (score.record.get(f"eval_reward_{end}", score.score) for end in ("min", "max"))
    rounding = _ROUNDING * max(abs(least), abs(most))
    if not -largest <= least <= most <= largest or not least - rounding <= score.score <= most + rounding:
        raise RefusedError(
            f"score: expected the mean of returns within {largest:g} ({LARGEST_VALUE:g} times evaluator.max_steps), "
            f"from eval_reward_min to eval_reward_max, found {score.score} and returns from {least} to {most}",
            "report",
        )
