from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

TORCHRUN = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
RANK = """
import os, threading
from common.process.signals import StopSignals
from learner.ranks.torchrun import end_with_torchrun

def stop():
    print("stopping", flush=True)
    is_stopped.set()

is_stopped, signals = threading.Event(), StopSignals()
signals.on_stop = stop
end_with_torchrun(os.getppid(), signals)
print(os.getpid(), flush=True)
for thread in threading.enumerate():
    if thread.name == "torchrun":
        thread.join()
is_stopped.wait()
print("ended in order", flush=True)
"""


@pytest.mark.parametrize("is_told", [False, True])
def test_a_rank_whose_torchrun_is_killed_stops_unless_it_does_already(is_told: bool) -> None:
    """A second signal would end it at once."""
    with subprocess.Popen([sys.executable, "-c", TORCHRUN, RANK], stdout=subprocess.PIPE, text=True) as torchrun:
        assert torchrun.stdout is not None
        rank = int(torchrun.stdout.readline())
        if is_told:
            os.kill(rank, signal.SIGTERM)
            assert torchrun.stdout.readline() == "stopping\n"
        torchrun.kill()
        assert torchrun.stdout.read() == ("" if is_told else "stopping\n") + "ended in order\n"
