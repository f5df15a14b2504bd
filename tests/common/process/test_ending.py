from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import PATIENCE, ROOT

LEAVING = """
import atexit, multiprocessing, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from common.process import ending
from common.process.log import setup_logging

ending.TOLD_SECONDS = ending.END_SECONDS = {seconds}

def linger():
    print("it lingers", flush=True)
    while True:
        time.sleep(3600)

def main():
    setup_logging()
    signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM}})  # Also in a process that it forks.
    {leave}
    {end}

if __name__ == "__main__":
    sys.exit(ending.end_in_time(main))
"""
THREAD = "threading.Thread(target=linger, name='client').start()"
POOL = "ThreadPoolExecutor(thread_name_prefix='pool').submit(linger)"
PROCESS = "multiprocessing.get_context('fork').Process(target=linger, name='simulator').start()"
DAEMON = "multiprocessing.get_context('fork').Process(target=linger, name='simulator', daemon=True).start()"
AT_EXIT = "atexit.register(linger)"


def run(leave: str, end: str = "return 7", seconds: float = 0) -> subprocess.CompletedProcess[str]:
    """Run a process that leaves something behind, until nobody has its output any more."""
    words = [sys.executable, "-c", LEAVING.format(leave=leave, end=end, seconds=seconds)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE)


@pytest.mark.parametrize(
    ("leave", "told"),
    [
        (THREAD, "waits for the thread client;"),
        (POOL, "waits for the thread pool_0;"),
        (PROCESS, "(simulator);"),
        (DAEMON, "(simulator);"),
        (AT_EXIT, "waits for a function that is registered with atexit;"),
    ],
    ids=["thread", "pool", "process", "daemon", "atexit"],
)
def test_a_process_ends_with_its_exit_code_and_without_what_users_code_has_left_running(leave: str, told: str) -> None:
    ended = run(leave)
    assert ended.returncode == 7
    assert told in ended.stderr


def test_after_an_exception_a_process_ends_too() -> None:
    assert run(THREAD, "raise OSError('no arm')").returncode == 1


def test_a_process_waits_for_what_ends_in_time_and_says_nothing() -> None:
    late = "threading.Thread(target=lambda: (threading.main_thread().join(), print('uploaded'))).start()"
    ended = run(late, seconds=3600)
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, "uploaded\n", "")
