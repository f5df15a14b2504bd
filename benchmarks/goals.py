"""A reaching arm whose goals pay only where they are reached: SAC with hindsight and without, over several seeds.

    python -m benchmarks.goals                       five seeds each, then the table and docs/images/goals.png
    python -m benchmarks.goals --seeds 1             one seed each

A score is the mean return of 50 episodes of 50 steps: minus the steps that the tip was not at the goal.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks.variants import Variant, main

BUDGET: Final = {"trainer.target_score": "null", "trainer.max_opts": 10_000}
VARIANTS: Final = {
    "with hindsight": Variant(BUDGET),
    "without hindsight": Variant(BUDGET | {"replay.view": "{target: learner.views.transitions:Transitions}"}),
}

if __name__ == "__main__":
    main("goals", "Reaching goals", Path("configs/her_reach.yaml"), VARIANTS, __doc__ or "")
