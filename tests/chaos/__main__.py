"""The long exercises: ``python -m tests.chaos EXERCISE``; each fails loudly or writes its figures."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from typing import Any

from common.process.log import setup_logging
from tests.chaos.agreement import compare_readers
from tests.chaos.doors import fuzz_doors
from tests.chaos.fuzz import fuzz
from tests.chaos.greed import be_greedy
from tests.chaos.host_loss import lose_hosts
from tests.chaos.kills import kill_at_random
from tests.chaos.partition import cut_off, move_away
from tests.chaos.power import cut_power
from tests.chaos.ranks import train_killed
from tests.chaos.recovery import recover
from tests.chaos.report import keep, tell
from tests.chaos.resume import go_on
from tests.chaos.serving import serve_through
from tests.chaos.shutdown import shut_down
from tests.chaos.siege import besiege
from tests.chaos.soak import soak
from tests.chaos.storm import storm

EXERCISES: dict[str, tuple[Callable[..., dict[str, Any]], dict[str, Any]]] = {
    "kills": (kill_at_random, {"kills": 200, "seed": 1}),
    "ranks": (train_killed, {"kills": 5, "seed": 1}),
    "recovery": (recover, {"kills": 10, "seed": 1}),
    "partition": (cut_off, {"seconds": 30.0, "delay_ms": 200, "loss_percent": 1.0, "seed": 1}),
    "address": (move_away, {"seed": 1}),
    "shutdown": (shut_down, {}),
    "power": (cut_power, {"cuts": 10, "seed": 1, "shortest": 5.0, "longest": 90.0}),
    "host_loss": (
        lose_hosts,
        {"losses": 20, "seed": 1, "shortest": 3.0, "longest": 15.0, "mirror_seconds": 5.0},
    ),
    "resume": (go_on, {"seeds": 5, "seed": 1, "kills": 3}),
    "soak": (soak, {"minutes": 30.0}),
    "serving": (serve_through, {"kills": 100, "cuts": 100, "seed": 1}),
    "storm": (storm, {"actors": 256, "beyond": 16, "batches": 4}),
    "siege": (besiege, {"rounds": 5, "seconds": 10.0}),
    "greed": (be_greedy, {"rounds": 3, "seconds": 10.0}),
    "fuzz": (fuzz, {"messages": 1_000_000, "seed": 1}),
    "doors": (fuzz_doors, {"messages": 200_000, "seed": 1}),
    "agreement": (compare_readers, {"messages": 1_000_000, "seed": 1}),
}
"""What each calls, and with what unless told otherwise."""


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.chaos", description=__doc__)
    exercises = parser.add_subparsers(dest="exercise", required=True)
    for name, (_, defaults) in EXERCISES.items():
        exercise = exercises.add_parser(name, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        for option, value in defaults.items():
            exercise.add_argument(f"--{option}", type=type(value), default=value, help=" ")
    arguments = vars(parser.parse_args())
    setup_logging()
    warnings.simplefilter("error")  # As in the tests.
    name = arguments.pop("exercise")
    result = EXERCISES[name][0](**arguments)
    keep(name, result)
    tell(f"{name}: {result}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
