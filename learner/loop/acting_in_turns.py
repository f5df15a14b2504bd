"""The acting half of training in turns: environments, and the replay that they alone fill."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from actor.priority import PrioritizedItems
from actor.resumable import ResumableSampler
from actor.stat import ActorCounters
from common.config.run_config import RunConfig
from common.data import Snapshot
from common.interfaces import ItemSink
from common.parts import Parts
from common.process.clocks import Every
from learner.replay.limiter import RatioLimiter
from learner.replay.local_sink import LocalSink
from learner.replay.memory import ReplayMemory
from learner.replay.value_rules import ValueRules

log = logging.getLogger(__name__)


class Acting:
    """Steps ``envs_per_actor`` environments, and counts the opt steps that are due for it.

    It is kept and taken up again as a whole: items that came later are forgotten, and episodes go on where they were.
    Where that cannot be, the items stay and all episodes begin anew.

    Args:
        config: of the run.
        parts: environments and agent.
        memory: nobody else writes to it.
        rules: of the values it may hold.
        life: how many times the run has been started before; each has seeds of its own for episodes it begins anew.
    """

    def __init__(self, config: RunConfig, parts: Parts, memory: ReplayMemory, rules: ValueRules, *, life: int) -> None:
        self.counters, self._agent = ActorCounters(), parts.agent
        ratio, warmup = config.replay.samples_per_insert, config.trainer.warmup_period
        limiter = RatioLimiter(ratio, warmup, error_buffer=0.0, began=memory.began)
        self.limiter = limiter.since(ratio, memory.committed, 0)
        """Says when an opt step is due. What the replay was filled with before asks for none."""
        self.goes_on = False
        """Whether it has been restored to where it was."""
        self.owed = 0
        """Opt steps that are due and not yet taken; 0 where there is a replay ratio, which says when they are."""
        self._opt = Every(config.trainer.opt_interval if config.replay.samples_per_insert is None else None)
        self._local = LocalSink(memory, rules)
        self._sink: ItemSink = self._local
        if config.push.initial_priorities:
            self._sink = PrioritizedItems(self._local, parts.agent)
        self._sampler = ResumableSampler(parts.lanes, self.counters, config.seed + life * len(parts.lanes))

    def act(self) -> None:
        """One step in every environment.

        Raises:
            Exception: what an environment, a step processor or the agent raised.
        """
        before = self.counters.env_steps
        self._sampler.sample_and_push(self._agent, self._sink)
        self.owed += self._opt.count(before, self.counters.env_steps)

    def state(self) -> Snapshot:
        """What it needs to be taken up again, between two rounds."""
        sampler = self._sampler.state()
        limiter = self.limiter
        counted = [limiter.samples_per_insert, limiter.inserted_before, limiter.sampled_before]
        values = {"replay": self._local.mark(), "owed": self.owed, "counted": counted, "sampler": sampler.values}
        return Snapshot(values, sampler.arrays)

    def restore(self, state: Snapshot) -> None:
        """Go on as ``state`` says."""
        if self._rolls_back(state.values["replay"]):
            self.owed = state.values["owed"]
            self._sampler.restore(Snapshot(state.values["sampler"], state.arrays))
            ratio, inserted, sampled = state.values.get("counted", (self.limiter.samples_per_insert, 0, 0))
            self.goes_on = ratio == self.limiter.samples_per_insert
            self.limiter = self.limiter.since(self.limiter.samples_per_insert, inserted, sampled)

    def count_from(self, inserted: int, sampled: int) -> None:
        """Let the ratio hold from these counters on: neither side catches up with what came before."""
        self.limiter = self.limiter.since(self.limiter.samples_per_insert, inserted, sampled)

    def _rolls_back(self, mark: Mapping[str, Any]) -> bool:
        if self._local.roll_back(mark):
            return True
        log.warning(
            "the replay cannot go back to its first %d items: those that followed stay, episodes begin anew, and the "
            "curve will not be that of a run that was never interrupted",
            mark["end"],
        )
        return False
