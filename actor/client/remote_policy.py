"""Acting with the policy of an acting service: the sampler of this process asks it for actions, and tells it the steps.

An actor of the service's learner records the same rows of these lanes as an actor with environments of its own would.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from actor.client.acting_session import ActingSession, NoAnswerError
from common.data import Array, Items, Leaves
from common.interfaces import FixedAgent
from common.lanes.lanes import Lanes, Round
from common.leaves import empty_leaves, pick_leaves, put_leaves
from common.wire.acting_payloads import Description
from common.wire.pb import acting_pb2 as pb


class RemotePolicy(FixedAgent):
    """Chooses the actions of a sampler's lanes by asking an acting service.

    A message to the service has an observation and the outcome of the step before it. So the policy keeps the outcome
    of each round until the next one. Where an episode has ended, it tells the last observation at once, and the service
    answers while the environment is reset.

    Args:
        session: with the service.
        description: the spaces as they travel.
        lanes: say where episodes begin.
        seconds: for which an action may be awaited; None: as long as the session allows.
    """

    def __init__(self, session: ActingSession, description: Description, lanes: Lanes, seconds: float | None) -> None:
        self._session, self._description, self._lanes, self.seconds = session, description, lanes, seconds
        self._n = lanes.n
        self._acts, self._is_open = np.zeros(self._n, bool), np.zeros(self._n, bool)
        """By lane: an episode goes on, and the service knows of an episode that has not ended. They differ where an
        episode was lost."""
        self._outcome: Round | None = None
        """Of the last round, unless it was told."""

    def sample(self, obs: Any) -> Leaves:
        """Actions of the service for all lanes; zeros for lanes in which no episode goes on.

        Raises:
            NoAnswerError: it has not answered in time. After that, all lanes must begin episodes.
            CrossborderError: see ``ActingSession.answer``.
        """
        while self._session.waits:  # For the answers to the ends of episodes, or for one that came too late.
            self._session.answer(self.seconds)
        # Not those of ``begin``, which at the first round are all lanes, also those in which nobody is.
        begins = np.zeros(self._n, bool) if self._lanes.begins is None else self._lanes.begins
        self._acts |= begins
        acting = np.flatnonzero(self._acts)
        acts_everywhere, actions = len(acting) == self._n, empty_leaves(self._description.spec.action_space, self._n)
        if not len(acting):
            return actions
        step = self._make_step(acting, obs if acts_everywhere else pick_leaves(obs, acting), self._outcome, begins)
        if (restarted := begins & self._is_open).any():
            step.restarted.extend(restarted[acting].tolist())
        self._outcome = None
        self._is_open[acting] = True
        self._session.ask(step)
        chosen = self._description.read_action(self._session.answer(self.seconds).action, len(acting))
        if acts_everywhere:
            return chosen
        put_leaves(actions, acting, chosen)
        return actions

    def wait(self, seconds: float) -> bool:
        """Wait for an action that came too late; False if it has not come after ``seconds`` either."""
        try:
            while self._session.waits:
                self._session.answer(seconds)
        except NoAnswerError:
            return False
        return True

    def tell(self, outcome: Round) -> None:
        """Note the outcome of a round, valid until the next one, and tell how episodes ended; does not wait."""
        self._outcome = outcome
        if outcome.taken is not None:
            self._acts &= outcome.taken
        if outcome.ended is not None and outcome.final_obs is not None:
            step = self._make_step(outcome.ended, outcome.final_obs, outcome)
            step.terminated.extend(outcome.terminated[outcome.ended].tolist())
            step.truncated.extend(outcome.truncated[outcome.ended].tolist())
            self._acts[outcome.ended] = self._is_open[outcome.ended] = False
            self._session.ask(step)

    def last_step(self) -> pb.LaneSteps | None:
        """What the service does not know yet of the last round; None if it knows all."""
        outcome = self._outcome
        if outcome is None:
            return None
        acting = np.flatnonzero(self._acts)
        return self._make_step(acting, pick_leaves(outcome.obs, acting), outcome) if len(acting) else None

    def _make_step(self, lanes: Array, obs: Leaves, outcome: Round | None, begins: Array | None = None) -> pb.LaneSteps:
        """The observations of some lanes, and the outcomes of their steps before, except where episodes begin.

        Args:
            lanes: ``[k]``.
            obs: of these lanes, ``[k, *shape]``.
            outcome: of all lanes; None: no step was before.
            begins: of all lanes, ``[n]``; None: no episode begins.
        """
        k = len(lanes)
        step = pb.LaneSteps(observation=self._description.write_observation(obs, k))
        if k < self._n:
            step.lanes.extend(lanes.tolist())
        if outcome is not None:
            stepped = np.ones(k, bool) if begins is None else ~begins[lanes]
            step.reward.extend(np.where(stepped, outcome.reward[lanes], 0.0).tolist())
            if outcome.action is not None and outcome.intervened is not None:
                by_others = outcome.intervened[lanes] & stepped
                if by_others.any():
                    step.executed = self._description.write_executed(pick_leaves(outcome.action, lanes), k)
                    step.intervened.extend(by_others.tolist())
        return step


class Telling:
    """Tells a remote policy the rounds of a sampler: its recorder, and its sink.

    No rows are made in this process, so most methods do nothing.
    """

    version = rows = 0

    def __init__(self, policy: RemotePolicy) -> None:
        self._policy = policy

    def begin(
        self, obs: Leaves, begins: Array | None, actions: Leaves, extras: Mapping[str, Array] | None
    ) -> None: ...  # The policy has seen it.

    def end(self, outcome: Round) -> None:
        self._policy.tell(outcome)

    def items(self) -> Items:
        return {}

    def clear(self) -> None: ...

    def takes(self, rows: int) -> bool:  # noqa: ARG002 - as in ItemSink
        return False

    def push(self, items: Items) -> None: ...
