"""IMPALA with 1, 4 and 16 actors, and V-trace on and off where actors are far behind the learner.

    python -m benchmarks.offpolicy                                five seeds of each variant on CartPole
    python -m benchmarks.offpolicy --variants "1 actor" "lag 200" --seeds 1

A lag of N means that actors get a new model after each N opt steps (``trainer.sync_interval``), so the steps that the
learner learns from are up to N updates old. Every run takes the same number of opt steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.variants import Variant, main


def make_variants(max_opts: int, eval_interval: int) -> dict[str, Variant]:
    """The variants, each with the same opt steps."""
    budget = {"trainer.target_score": "null", "trainer.max_opts": max_opts, "trainer.eval_interval": eval_interval}
    return {
        "1 actor": Variant(budget, actors=1),
        "4 actors": Variant(budget, actors=4),
        "16 actors": Variant(budget, actors=16),
        "4 actors, no correction": Variant(budget | {"agent.params.correction": "none"}, actors=4),
        "lag 50": _at_lag(50, "vtrace", budget),
        "lag 50, no correction": _at_lag(50, "none", budget),
        "lag 200": _at_lag(200, "vtrace", budget),
        "lag 200, no correction": _at_lag(200, "none", budget),
    }


def _at_lag(opt_steps: int, correction: str, budget: Mapping[str, Any]) -> Variant:
    lag = {"trainer.sync_interval": opt_steps, "agent.params.correction": correction}
    return Variant({**budget, **lag}, actors=2)


if __name__ == "__main__":
    variants = make_variants(max_opts=1500, eval_interval=100)
    main("offpolicy", "Steps of older policies", Path("configs/impala_cartpole.yaml"), variants, __doc__ or "")
