"""The whole example by one command: demonstrations, a learner, two robots, faults, and a policy that succeeds.

    python -m examples.robot.run

During the run, one robot is killed and started again, and the other robot's network falls silent for a while.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from examples.robot.demonstrations import write_demonstrations
from examples.robot.film import film
from examples.robot.fleet import BIN, Fleet, free_port

QUIET_SECONDS: Final = 20.0
"""The time between the two faults, in which the learner and the robots work."""
DEAD_SECONDS: Final = 5.0
CUT_SECONDS: Final = 15.0


def tell(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def train(folder: Path, settings: dict[str, object], *, faults: bool) -> int:
    """Train with two robots until the policy succeeds; return the learner's exit code."""
    with Fleet(folder, settings) as fleet:
        learner = fleet.start_learner()
        relay_port = free_port()
        network = fleet.start("relay", [sys.executable, "-m", "examples.robot.relay", str(relay_port), str(fleet.port)])
        fleet.start_robots(0, port=relay_port)
        [robot] = fleet.start_robots(1)
        tell(f"two robots act and learn; what they do is in {fleet.log('learner')}")
        if faults and not has_ended(learner, QUIET_SECONDS):
            robot.send_signal(signal.SIGKILL)
            tell(f"robot 1 is killed; it starts again {DEAD_SECONDS:g} s later")
            has_ended(learner, DEAD_SECONDS)
            fleet.start_robots(1)
            tell("robot 1 has joined again")
            has_ended(learner, QUIET_SECONDS)
            network.send_signal(signal.SIGSTOP)
            tell(f"the network of robot 0 is silent for {CUT_SECONDS:g} s")
            has_ended(learner, CUT_SECONDS)
            network.send_signal(signal.SIGCONT)
            tell("the network of robot 0 is back")
        return learner.wait()


def has_ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether a process ends within some seconds."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def show(folder: Path) -> None:
    """Score the best policy, draw its learning curve and film it."""
    run = str(folder / "run")
    episodes = ["--episodes", "50", "--seed", "5000"]
    subprocess.run([BIN / "policy-eval", "--run", run, "--allow", "examples", *episodes], check=True)
    curve = ["--over", "seconds", "--title", "success in evaluations", "--output", str(folder / "curve.png")]
    subprocess.run([BIN / "crossborder-plot", run, *curve], check=True)
    film(folder / "run" / "best", folder / "policy.gif", episodes=4)
    tell(f"{folder / 'curve.png'}: the learning curve; {folder / 'policy.gif'}: four episodes of the policy")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example; return the learner's exit code, which is 0 if the policy succeeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/robot"), help="the directory for all files")
    parser.add_argument("--no-faults", action="store_true", help="kill no robot and silence no network")
    parser.add_argument("--set", action="append", default=[], metavar="KEY.KEY=VALUE", help="another setting")
    arguments = parser.parse_args(argv)
    demonstrations = arguments.folder / "demonstrations"
    if arguments.folder.exists():
        parser.error(f"{arguments.folder} exists: remove it, or name another folder")
    steps = write_demonstrations(demonstrations, episodes=20, noise=0.5)
    tell(f"20 demonstrations of {steps} steps are in {demonstrations}")
    given = dict(assignment.split("=", 1) for assignment in arguments.set)
    settings = {"replay.sources.demonstrations.dataset": demonstrations, **given}
    code = train(arguments.folder, settings, faults=not arguments.no_faults)
    if code == 0:
        show(arguments.folder)
    else:
        tell(f"the learner ended with exit code {code}; see {arguments.folder / 'learner.log'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
