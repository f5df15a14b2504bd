"""One client's session: its lanes, where their episodes are, and the answers that it may ask for again."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import numpy as np

from common.data import Array
from common.leaves import empty_leaves, pick_lanes, put_leaves
from common.wire.pb import acting_pb2 as pb
from crossborder.serving.batching import Batcher, Choice
from crossborder.serving.description import Description
from crossborder.serving.figures import Figures
from crossborder.serving.reading import Moment, read_step
from learner.ingest.refusals import BadMessageError


class Session:
    """The lanes of one client. It outlives its connection, and goes on with the next one.

    Args:
        key: the digest of its secret.
        owner: the name of the client's token; empty without tokens.
        lanes: their numbers among all lanes of the service, ``[n]`` int64. The client counts them from 0.
        seed: of the first lane.
        description: of observations and actions.
        batches: chooses actions.
        figures: counts them.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        *,
        key: bytes,
        owner: str,
        lanes: Array,
        seed: int,
        description: Description,
        batches: Batcher,
        figures: Figures,
        clock: Callable[[], float],
    ) -> None:
        self.key, self.owner, self.lanes, self.seed = key, owner, lanes, seed
        self.last_seq = 0
        self.silent_since = clock()
        self.hang_up: Callable[[], None] | None = None
        """Ends the present connection; None while there is none."""
        self._description, self._batches, self._figures, self._clock = description, batches, figures, clock
        self._answers = OrderedDict[int, asyncio.Future[pb.LaneActions]]()
        """By seq, the oldest first; those of the last n steps, and of one before them."""
        self._begins = np.ones(len(lanes), bool)
        """By lane: its next observation begins an episode."""
        self._waits = np.zeros(len(lanes), bool)
        """By lane: it waits for an action."""
        self._returns = np.zeros(len(lanes))

    def take(self, step: pb.LaneSteps) -> asyncio.Future[pb.LaneActions]:
        """Take a step; the same step again gets the same answer. A step that is refused changes nothing.

        Raises:
            BadMessageError: the step breaks a rule.
        """
        self.silent_since = self._clock()
        kept = self._answers.get(step.seq)
        if kept is not None:
            self._figures.repeated += 1
            return kept
        if step.seq != self.last_seq + 1:
            raise BadMessageError(f"step: expected seq {self.last_seq + 1}, found {step.seq}")
        moment = read_step(step, len(self.lanes), self._description)
        self._check(moment)
        self.last_seq = step.seq
        answer = self._act(moment)
        self._answers[step.seq] = answer
        if len(self._answers) > len(self.lanes) + 1:
            self._answers.popitem(last=False)
        return answer

    def pending(self) -> list[asyncio.Future[pb.LaneActions]]:
        """The answers that are not there yet."""
        return [answer for answer in self._answers.values() if not answer.done()]

    def _check(self, moment: Moment) -> None:
        """Check that the step fits the episodes of its lanes.

        Raises:
            BadMessageError: it does not.
        """
        if self._waits[moment.lanes].any():
            lane = moment.lanes[self._waits[moment.lanes]][0]
            raise BadMessageError(f"step: expected no step of lane {lane} before the answer to its last one, found one")
        begins = self._begins[moment.lanes] | moment.restarted
        odd = begins & (moment.ends | (moment.reward != 0))
        if odd.any():
            lane = moment.lanes[odd][0]
            raise BadMessageError(
                f"step: expected neither a reward nor an end where the episode of lane {lane} begins, found one: both "
                "belong to the step before"
            )

    def _act(self, moment: Moment) -> asyncio.Future[pb.LaneActions]:
        """Ask for the actions of all lanes whose episodes go on."""
        lanes, acts = moment.lanes, ~moment.ends
        begins = self._begins[lanes] | moment.restarted
        self._count_returns(moment, begins)
        self._begins[lanes] = moment.ends
        answer: asyncio.Future[pb.LaneActions] = asyncio.get_running_loop().create_future()
        tell = partial(self._tell, answer, moment, acts, self._clock())
        if acts.any():
            self._waits[lanes] = True
            self._batches.submit(self.lanes[lanes[acts]], pick_lanes(moment.obs, acts), begins[acts], tell)
        else:
            tell(None)
        return answer

    def _count_returns(self, moment: Moment, begins: Array) -> None:
        returns = np.where(begins, 0.0, self._returns[moment.lanes]) + moment.reward
        self._returns[moment.lanes] = returns
        self._figures.episodes += int(moment.ends.sum())
        self._figures.return_sum += float(returns[moment.ends].sum())

    def _tell(
        self, answer: asyncio.Future[pb.LaneActions], moment: Moment, acts: Array, came: float, choice: Choice | None
    ) -> None:
        """Answer a step. Lanes whose episode has ended get an action without meaning; None: all of them."""
        k = len(moment.lanes)
        if choice is not None and acts.all():
            actions = choice.actions
        else:
            actions = empty_leaves(self._description.spec.action_space, k)
            if choice is not None:
                put_leaves(actions, acts, choice.actions)
        self._waits[moment.lanes] = False
        self._figures.answer_seconds.observe(self._clock() - came)
        self._figures.actions += int(acts.sum())
        payload, opt_steps = self._description.write_action(actions, k), choice.opt_steps if choice else 0
        answer.set_result(pb.LaneActions(seq=moment.seq, action=payload, version=opt_steps))
