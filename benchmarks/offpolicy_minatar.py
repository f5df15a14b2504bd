"""As ``benchmarks.offpolicy``, on MinAtar's Breakout: IMPALA with 1, 4 and 16 actors, V-trace on and off at a lag.

    python -m benchmarks.offpolicy_minatar --seeds 1 --variants "1 actor" "4 actors" "16 actors"

Every run takes the same number of opt steps, each for about 512 environment steps.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.offpolicy import make_variants
from benchmarks.variants import main

if __name__ == "__main__":
    variants = make_variants(max_opts=900, eval_interval=100)
    config = Path("configs/impala_minatar_breakout.yaml")
    main("offpolicy_minatar", "IMPALA on MinAtar's Breakout", config, variants, __doc__ or "")
