"""One client's session: its lanes, where their episodes are, and the answers that it may ask for again."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial

import numpy as np

from common.data import Array
from common.wire.pb import acting_pb2 as pb
from common.wire.rpc import BadMessageError
from crossborder.serving.batching import Choice
from crossborder.serving.client_steps import LaneSteps, read_lanes, read_steps
from crossborder.serving.served_policy import ServedPolicy

Tell = Callable[[pb.ActResponse], None]
"""Takes the answer to a step."""


class Session:
    """The lanes of one client. It outlives its connection, and goes on with the next one.

    Args:
        key: the digest of its secret.
        owner: the name of the client's token; empty without tokens.
        lanes: their numbers among all lanes of the service, ``[n]`` int64. The client counts them from 0.
        seed: of the first lane.
        policy: acts for all of them.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        *,
        key: bytes,
        owner: str,
        lanes: Array,
        seed: int,
        policy: ServedPolicy,
        clock: Callable[[], float],
    ) -> None:
        self.key, self.owner, self.lanes, self.seed, self.policy = key, owner, lanes, seed, policy
        self.last_seq = 0
        self.silent_since = clock()
        self.opened_at, self.door = time.time(), ""
        """Unix seconds, and the door of its present or last connection."""
        self.hang_up: Callable[[], None] | None = None
        """Ends the present connection; None while there is none."""
        self._clock = clock
        self.on_rest: Callable[[], None] | None = None
        """Called once, as soon as no lane waits any more."""
        self._answers = OrderedDict[int, pb.ActResponse | list[Tell]]()
        """By seq, the oldest first; those of the newest steps that name n lanes together, and of one before them. Of a
        step that waits for its actions there are the functions that are to be told: one for each time that it came."""
        self._named, self._n_named = deque[int](), 0
        """How many lanes each of these steps names, and the sum."""
        self._own = np.arange(len(lanes))
        """All lanes by the client's count."""
        self._begins = np.ones(len(lanes), bool)
        """By lane: its next observation begins an episode."""
        self._waits, self._n_waiting = np.zeros(len(lanes), bool), 0
        """By lane: it waits for an action; and how many do."""

    def take(self, step: LaneSteps, tell: Tell) -> None:
        """Take a step; the same step again gets the same answer. A step that is refused changes nothing.

        Args:
            step: the message.
            tell: takes the answer, now or later. If the step has come by another connection before, and has no answer
                yet, nobody there is told any more.

        Raises:
            BadMessageError: the step breaks a rule.
        """
        self.silent_since = self._clock()
        kept = self._answers.get(step.seq)
        if kept is not None:
            self.policy.figures.repeated += 1
            if isinstance(kept, pb.ActResponse):
                tell(kept)
            else:
                self._answers[step.seq] = [*kept, tell] if tell in kept else [tell]
            return
        if step.seq != self.last_seq + 1:
            raise BadMessageError(f"step: expected seq {self.last_seq + 1}, found {step.seq}")
        self._named.append(self._ask(step))
        self._n_named += self._named[-1]
        self.last_seq = step.seq
        self._answers[step.seq] = [tell]
        while self._n_named - self._named[0] > len(self.lanes):
            self._n_named -= self._named.popleft()
            self._answers.popitem(last=False)

    @property
    def rests(self) -> bool:
        """Whether no lane waits for an action."""
        return not self._n_waiting

    def _ask(self, step: LaneSteps) -> int:
        """Ask for the actions of some lanes; return how many."""
        own = read_lanes(step.lanes, len(self.lanes)) if step.lanes else self._own
        if self._n_waiting and (waits := self._waits[own]).any():
            raise BadMessageError(
                f"step: expected no step of lane {own[waits][0]} before the answer to its last one, found one"
            )
        steps = read_steps(step, own, self.lanes[own], self._begins[own], self.policy.description)
        self._begins[own], self._waits[own] = steps.ends, True
        self._n_waiting += len(own)
        self.policy.batches.submit(steps, partial(self._answer, step.seq, own))
        return len(own)

    def _answer(self, seq: int, own: Array, choice: Choice) -> None:
        self._waits[own] = False
        self._n_waiting -= len(own)
        self.silent_since = self._clock()
        answer = pb.ActResponse()
        action = answer.action  # In its place at once: a message that is given to another one is copied.
        action.seq, action.action, action.version, action.seconds = seq, choice.action, choice.opt_steps, choice.seconds
        waiting = self._answers[seq]
        assert isinstance(waiting, list), "a step is answered once"
        self._answers[seq] = answer
        for tell in waiting:
            tell(answer)
        if self.on_rest is not None and self.rests:
            self.on_rest()
