"""One opt step of an agent, in the precision of the run. If it fails, the rows that it had drawn are named."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

import torch

from common.data import Record
from common.errors import RankLostError
from common.interfaces import Agent, ReplayBuffer
from learner.replay.reader import NothingToDrawError

log = logging.getLogger(__name__)
IN_VAIN: Final = 10_000
"""After so many calls of ``opt`` without an opt step there is a warning, and after ten times as many another one."""

_IN_WARM_UP: Final = "agent.opt returned None, as in the warm-up; an opt step returns a record, such as {}"


def do_nothing() -> None:
    """Do nothing: the default of a callable that a caller may leave out."""


class OptStep:
    """Takes the opt steps of an agent, and measures the time that they take.

    Args:
        agent: learns.
        buffer: the agent draws from it.
        computing: a context in which each ``opt`` runs, such as a precision.
        explain: when ``opt`` has raised, says which rows it had drawn.
        after: called after each ``opt``, before the agent is scored, saved or published.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        agent: Agent,
        buffer: ReplayBuffer,
        *,
        computing: AbstractContextManager[object],
        explain: Callable[[], str],
        after: Callable[[], None] = do_nothing,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.agent, self.buffer = agent, buffer
        self._computing, self._explain, self._after, self._clock = computing, explain, after, clock
        self.seconds = 0.0
        """Seconds that opt steps have taken in this life of the run."""
        self._ended_at: float | None = None
        self._in_vain, self._warn_at = 0, IN_VAIN
        self._has_warned = False

    def seconds_since(self) -> float | None:
        """Seconds since the last opt step ended; None before the first."""
        return None if self._ended_at is None else self._clock() - self._ended_at

    def take(self, number: int) -> Record | None:
        """Take one opt step; return the agent's record, None in the warm-up or if nothing can be drawn yet.

        Args:
            number: of this opt step in the run, from 1.

        Raises:
            Exception: from the agent's ``opt``, with a note that names the rows it had drawn.
        """
        began, record, reason = self._clock(), None, _IN_WARM_UP
        try:
            with self._computing:
                # An environment or a callback may have changed torch's mode since it was built. To ask takes 0.3 us.
                is_usual = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
                record = self.agent.opt(self.buffer) if is_usual else self._opt_with_gradients()
        except NothingToDrawError:
            reason = "replay.view finds no row at which a draw can begin"
        except RankLostError:  # The rows of the batch are not its cause.
            raise
        except Exception as error:
            explanation = self._explain()
            log.error("opt step %d failed (%s: %s): %s", number, type(error).__name__, error, explanation)
            error.add_note(explanation)
            raise
        if record is None:
            self._note_in_vain(reason)
        else:
            self._in_vain = 0
            self._after()
            self._ended_at = self._clock()
            self.seconds += self._ended_at - began
        return record

    def _opt_with_gradients(self) -> Record | None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "torch.set_grad_enabled(False) was called, or torch.inference_mode was left open, as by an environment "
                "or a callback: opt steps compute gradients all the same"
            )
        with torch.inference_mode(mode=False), torch.enable_grad():
            return self.agent.opt(self.buffer)

    def _note_in_vain(self, reason: str) -> None:
        """Warn of an agent that does not learn, since ``trainer.max_opts`` would never end its training."""
        self._in_vain += 1
        if self._in_vain == self._warn_at:
            self._warn_at *= 10
            log.warning(
                "%d times in a row no opt step was taken after the warm-up: %s; trainer.max_opts counts only opt steps",
                *(self._in_vain, reason),
            )
