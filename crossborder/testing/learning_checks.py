"""Checks that an agent learns: in this process, in turns with its own acting, from a fixed seed."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

import gymnasium
import numpy as np

from common.config.actor_config import EvaluatorConfig
from common.data import EVAL_KEYS, RUN_KEYS, Items, Leaves, Schema
from common.evaluation import DefaultEvaluator, score_agent
from common.interfaces import Agent, ReplayBuffer, Step
from common.lanes.building import Env, spec_of
from common.leaves import pick_leaves, stack_lanes
from common.parts import row_schema
from common.settings import validate
from crossborder.testing.agent_checks import MakeAgent, MakeView, make_agent
from crossborder.testing.play import ItemMemory, check_record, play
from crossborder.testing.row_memory import RowMemory, make_view, rows_of, transitions_of

ROUNDS = 10
"""The agent acts, learns and is scored so often."""


def check_learning(
    make: MakeAgent,
    env: Env,
    target: float,
    *,
    opts: int = 1_000,
    steps_per_opt: int = 1,
    epsilon: float = 0.1,
    view: MakeView | None = None,
    episodes: int = 10,
    seed: int = 0,
) -> list[float]:
    """Check that an agent reaches a score in an environment within some opt steps.

    The agent acts for a tenth of the steps, takes a tenth of the opt steps with draws from all that it has seen, and is
    scored; and so ten times, or until it has reached the score. There are no other processes, so this suits a
    test of a small problem that takes seconds. What it draws is uniform, whatever ``replay`` of a run says.

    Args:
        make: as in ``check_agent``.
        env: the agent acts in it, and is scored in it.
        target: the mean undiscounted return of greedy episodes that is to be reached.
        opts: the most opt steps.
        steps_per_opt: environment steps for each of them.
        epsilon: given to ``make``: the share of random actions of an agent that explores by such a share.
        view: as in ``check_agent``.
        episodes: in one score.
        seed: of the agent, of the draws and of the environment.

    Returns:
        The scores: before the first opt step, and after each round.

    Raises:
        AssertionError: it has not learnt so much, with all scores; or it learns from each step once, as PPO does. Such
            an agent needs a run: set ``trainer.target_score`` and call ``sync-train``.
    """
    spec = spec_of(env)
    agent = make_agent(make, spec, seed, epsilon)
    _require_redraws(agent)
    experience = _Experience(row_schema(spec, agent), view)
    evaluator = DefaultEvaluator(env, validate(EvaluatorConfig, {"episodes": episodes}), seed=seed)
    scores = [score_agent(evaluator, agent)[0]]
    for number in range(ROUNDS):
        experience.add(*_act(agent, env, max(1, opts * steps_per_opt // ROUNDS), seed + number))
        _learn(agent, experience.memory(agent, seed), max(1, opts // ROUNDS))
        scores.append(score_agent(evaluator, agent)[0])
        if scores[-1] >= target:
            return scores
    raise AssertionError(_describe_failure(scores, target, opts))


def _describe_failure(scores: list[float], target: float, opts: int) -> str:
    found = ", ".join(f"{score:.4g}" for score in scores)
    return (
        f"expected a mean return of {target:g} within {opts} opt steps, found {found} (the first before any opt step); "
        "give it more opts or steps_per_opt if the scores still rise"
    )


def _require_redraws(agent: Agent) -> None:
    assert not agent.draws_once, (
        f"{type(agent).__name__} learns from each step once, so it needs the queue of a run: test it by sync-train "
        "with trainer.target_score"
    )


def _learn(agent: Agent, memory: ReplayBuffer, opts: int) -> None:
    """Take opt steps, and check their records."""
    for _ in range(opts):
        check_record(agent.opt(memory) or {}, "opt()", RUN_KEYS | EVAL_KEYS)


class _Experience:
    """All that an agent has seen, and a memory of it.

    Args:
        schema: of its rows.
        view: as in ``check_agent``.
    """

    def __init__(self, schema: Schema, view: MakeView | None) -> None:
        self._schema, self._view = schema, view
        self._played, self._extras = list[list[Step]](), list[list[Items]]()

    def add(self, played: list[list[Step]], extras: list[list[Items]]) -> None:
        """Add episodes, and the extra columns of each step."""
        self._played += played
        self._extras += extras

    def memory(self, agent: Agent, seed: int) -> ReplayBuffer:
        """A memory that draws from everything, by this seed."""
        rows = rows_of(self._schema, self._played, self._extras)
        if self._view is None:
            return ItemMemory(transitions_of(self._schema, rows), seed)
        view = make_view(self._view, self._schema, discount_factor=getattr(agent, "discount_factor", 0.99))
        return RowMemory(self._schema, rows, view, seed)


class _Beginnings(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Notes whether an episode has begun since an agent acted."""

    begins = False

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        self.begins = True
        return super().reset(**given)


def _act(agent: Agent, env: Env, steps: int, seed: int) -> tuple[list[list[Step]], list[list[Items]]]:
    """Episodes in which the agent has acted and explored, the last one cut off; and the extra columns of each step."""
    agent.train()
    watched, recorded = _Beginnings(env), list[Items]()

    def choose(obs: Leaves) -> Leaves:
        agent.begin(np.array([watched.begins]))
        watched.begins = False
        actions: Leaves = agent.sample(stack_lanes([obs]))
        recorded.append({name: column.copy() for name, column in agent.extras().items()})
        return pick_leaves(actions, 0)

    played = play(watched, steps, seed=seed, policy=choose)
    last = played[-1][-1]
    if not last.terminated:
        played[-1][-1] = replace(last, truncated=True)
    ends = list(accumulate(len(episode) for episode in played))
    return played, [recorded[start:end] for start, end in zip([0, *ends], ends, strict=False)]
