"""IMPALA with 1, 4 and 16 actors, and V-trace on and off where actors are far behind the learner.

    python -m benchmarks.offpolicy                                five seeds of each variant on CartPole
    python -m benchmarks.offpolicy --variants "1 actor" "lag 200" --seeds 1

A lag of N means that actors get a new model after each N opt steps (``trainer.sync_interval``), so the steps that the
learner learns from are up to N updates old. Every run takes the same number of opt steps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from benchmarks.variants import Variant, main

BUDGET: Final[dict[str, Any]] = {
    "trainer.target_score": "null",
    "trainer.max_opts": 1500,
    "trainer.eval_interval": 100,
}


def _at_lag(opt_steps: int, correction: str) -> Variant:
    lag = {"trainer.sync_interval": opt_steps, "agent.params.correction": correction}
    return Variant(BUDGET | lag, actors=2)


VARIANTS: Final = {
    "1 actor": Variant(BUDGET, actors=1),
    "4 actors": Variant(BUDGET, actors=4),
    "16 actors": Variant(BUDGET, actors=16),
    "4 actors, no correction": Variant(BUDGET | {"agent.params.correction": "none"}, actors=4),
    "lag 50": _at_lag(50, "vtrace"),
    "lag 50, no correction": _at_lag(50, "none"),
    "lag 200": _at_lag(200, "vtrace"),
    "lag 200, no correction": _at_lag(200, "none"),
}

if __name__ == "__main__":
    main("offpolicy", "Steps of older policies", Path("configs/impala_cartpole.yaml"), VARIANTS, __doc__ or "")
