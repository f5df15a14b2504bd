"""Opt steps per second on the GPU, bare, alone and while steps arrive, beside sbx in turns (``benchmarks.gpu``)."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Final

from benchmarks.gpu import kinds, measure
from benchmarks.gpu_host.part import give, read_arguments, tell

ORDER: Final = ("sac_rounded", "nature_512_rounded", "sac", "btr", "dqn", "fastsac_8192", "nature_512", "sac_8192")
REHEARSED: Final = ("sac",)
SECONDS: Final = 0.5
LEAST_SECONDS: Final = 0.2
MOST_SECONDS: Final = 80.0
"""A kind with its capture and the peer's compilation takes at most this long, so one is begun only if this is left."""


def main() -> None:
    budget, _ = read_arguments(__doc__)
    known = kinds()
    python = sys.executable if find_spec("sbx") else None
    if python is None:
        tell("sbx is not installed: ours is measured alone")
    for name in ORDER if budget.share == 1 else REHEARSED:
        if budget.share == 1 and budget.left < MOST_SECONDS:
            tell(f"{name}: not begun, {budget.left:.0f} s are left")
            continue
        tell(f"{name}: begins")
        kind = known[name].rehearse() if budget.share > 1 else known[name]
        give(**measure(name, kind, budget.device, max(LEAST_SECONDS, SECONDS / budget.share), python))


if __name__ == "__main__":
    main()
