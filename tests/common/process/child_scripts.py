"""Scripts for children: the key ``life`` of the boot line names the function that a child runs."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import logging
import mmap
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final

import numpy

from common.process.child import read_boot, say, wait_for_hang_up
from common.process.signals import leave_to_parent

MODULE: Final = "tests.common.process.child_scripts"


def tell(**event: Any) -> None:
    say(event)


def obedient(boot: dict[str, Any]) -> int:
    """Says hello, and ends when its stdin closes."""
    tell(pid=os.getpid(), boot=boot)
    sys.stdin.read()
    tell(goodbye=True)
    return 0


def listening(boot: dict[str, Any]) -> int:
    """Sends every line of its stdin back, until its stdin closes."""
    for line in sys.stdin:
        tell(heard=json.loads(line))
    return 0


def leaving(boot: dict[str, Any]) -> int:
    """Leaves signals to its parent, says hello, and sends every line of its stdin back, until its stdin closes."""
    leave_to_parent()
    tell(pid=os.getpid())
    return listening(boot)


def waiting(boot: dict[str, Any]) -> int:
    """Says whether its stdin is closed: first after a moment, and then when it is."""
    tell(is_closed=wait_for_hang_up(0.01))
    tell(is_closed=wait_for_hang_up())
    return 0


def stubborn(boot: dict[str, Any]) -> int:
    """Says hello, and runs on when its stdin closes."""
    tell(pid=os.getpid())
    threading.Event().wait()
    return 0


def reporting(boot: dict[str, Any]) -> int:
    """Ends with an error of its own."""
    tell(error=boot["error"], exit_code=boot["code"])
    return int(boot["code"])


def silent(boot: dict[str, Any]) -> int:
    """Ends without an event."""
    return int(boot["code"])


def shot(boot: dict[str, Any]) -> int:
    """Ends as a segfault would."""
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def cut_short(boot: dict[str, Any]) -> int:
    """Reads a mapped file that has been cut short."""
    with TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        mapped = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        return mapped[0]


def chatty(boot: dict[str, Any]) -> int:
    """Prints lines that are no events before an event."""
    sys.stdout.write(boot["line"] + "\n")
    sys.stdout.flush()
    sys.stdout.buffer.write(b"\xff no text\n")
    tell(after="greeting")
    sys.stdin.read()
    return 0


def closing(boot: dict[str, Any]) -> int:
    """Closes stdout, as users' code may, before it prints and sends an event."""
    sys.stdout.close()
    sys.stdout.write("still there\n")
    tell(closed=sys.stdout.closed)
    return 0


def dotting(boot: dict[str, Any]) -> int:
    """Shows its progress by dots on one line, and sends an event after each."""
    for dots in (1, 2):
        sys.stdout.write(".")
        tell(dots=dots)
    return 0


def simulating(boot: dict[str, Any]) -> int:
    """Starts a helper process, which inherits everything and never ends, and dies."""
    helper = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    tell(helper=helper.pid)
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def logging_(boot: dict[str, Any]) -> int:
    """Logs at several levels, and leaves a traceback."""
    from common.process.log import setup_logging

    setup_logging(form="json")
    log = logging.getLogger("deep.inside")
    log.info("all is well")
    log.warning("not so well")
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        log.exception("it broke")
    log.info("well again")
    return 0


def environment(boot: dict[str, Any]) -> int:
    """Sends the value of an environment variable, and its session."""
    tell(value=os.environ.get(boot["variable"]), session=os.getsid(0), pid=os.getpid())
    sys.stdin.read()
    return 0


def descriptor(boot: dict[str, Any]) -> int:
    """Writes to a file descriptor that it inherited."""
    os.write(boot["fd"], b"x")
    return 0


def parent(boot: dict[str, Any]) -> int:
    """Starts a child of its own, and sends its process id."""
    from common.process.child import Child

    child = Child("grandchild", MODULE, {"life": "obedient"})
    tell(grandchild=child.next_event(30)["pid"])
    threading.Event().wait()
    return 0


def random(boot: dict[str, Any]) -> int:
    """Draws from the random numbers that nobody has seeded, and says which signals are blocked."""
    import random as python

    blocked = [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())]
    tell(python=python.random(), numpy=float(numpy.random.random()), blocked=blocked)
    return 0


def parent_of_forked(boot: dict[str, Any]) -> int:
    """Starts a child by a fork server, and sends both process ids and the file to which the child says goodbye."""
    from common.process.fork_server import ForkServer

    server = ForkServer([MODULE])
    child = server.start_child("forked", MODULE, {"life": "writing_goodbye", "path": boot["path"]})
    tell(child=child.next_event(30)["pid"], server=server.pid)
    threading.Event().wait()
    return 0


def parent_of_stopped(boot: dict[str, Any]) -> int:
    """Starts a child by a fork server and stops it; sends both process ids."""
    from common.process import fork_server_child
    from common.process.fork_server import ForkServer

    fork_server_child.ORPHAN_SECONDS = 1  # type: ignore[misc] # shorter than for users
    server = ForkServer([MODULE])
    server.begin_here(MODULE)
    child = server.start_child("forked", MODULE, {"life": "obedient"})
    child.next_event(30)
    child.signal(signal.SIGSTOP)
    tell(child=child.pid, server=server.pid)
    threading.Event().wait()
    return 0


def parent_here(boot: dict[str, Any]) -> int:
    """Forks a fork server from itself; sends what a child says and how it ends.

    It handles signals and crashes, and has a pipe and an object with a finalizer that are its own. With ``threaded`` it
    has another thread.
    """
    from common.process.fork_server import ForkServer
    from common.process.signals import StopSignals

    StopSignals()
    reader, writer = os.pipe()
    faulthandler.enable(writer)
    if boot["threaded"]:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    server = ForkServer([MODULE])
    weakref.finalize(server, (Path(boot["child"]["path"]) / "finalizer").write_text, "called")
    server.begin_here("colorsys")
    child = server.start_child("forked", MODULE, boot["child"])
    tell(said=child.next_event(30), server=server.pid, has_imported="colorsys" in sys.modules)
    os.close(writer)
    ended, _, _ = select.select([reader], [], [], 10)
    tell(is_its_own=bool(ended), code=child.end(30))
    return listening(boot)


def parent_of_lingering(boot: dict[str, Any]) -> int:
    """Forks a fork server from itself; sends how a child ends that has left a thread behind."""
    from common.process import ending
    from common.process.fork_server import ForkServer

    ending.TOLD_SECONDS = ending.END_SECONDS = 0  # type: ignore[misc] # shorter than for users
    server = ForkServer([MODULE])
    server.begin_here(MODULE)
    child = server.start_child("forked", MODULE, {"life": "lingering"})
    tell(code=child.wait(60))
    return 0


def lingering(boot: dict[str, Any]) -> int:
    """Leaves a thread behind that never ends."""
    threading.Thread(target=threading.Event().wait).start()
    return 7


def looking_around(boot: dict[str, Any]) -> int:
    """Tells what it has from the process that forked it; at its end a thread and ``atexit`` write a file each."""
    import atexit

    path = Path(boot["path"])
    atexit.register((path / "atexit").write_text, "called")

    def write_late() -> None:
        sys.stdin.read()
        (path / "thread").write_text("waited for")

    threading.Thread(target=write_late).start()
    handlers = [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    tell(
        descriptors=sorted(int(each.name) for each in Path("/proc/self/fd").iterdir())[:-1],
        handlers=handlers,
        shows_crashes=faulthandler.is_enabled(),
        log=len(logging.getLogger().handlers),
        has_colorsys="colorsys" in sys.modules,
        collects=gc.isenabled(),
        name=Path("/proc/self/comm").read_text().strip(),
    )
    if boot["raises"]:
        raise RuntimeError("no end in order")
    return 7


def writing_goodbye(boot: dict[str, Any]) -> int:
    """Says hello, and writes a file when its stdin has closed."""
    tell(pid=os.getpid())
    sys.stdin.read()
    time.sleep(0.2)
    Path(boot["path"]).write_text("in order")
    return 0


def signalled(boot: dict[str, Any]) -> int:
    """Waits for signals; with ``orderly`` it has an orderly end, with ``prompt`` it ends when asked to, or at a line.

    A signal within ``echo_seconds`` after the first is the same request.
    """
    from common.process import signals as module
    from common.process.signals import StopSignals

    module.ECHO_SECONDS = boot["echo_seconds"]  # type: ignore[misc]
    signals, stopped = StopSignals(), threading.Event()

    def on_stop() -> None:
        tell(asked=True)
        if boot["prompt"]:
            stopped.set()

    if boot["orderly"]:
        signals.on_stop = on_stop
    try:
        tell(exit_code_before=signals.exit_code)
        if not boot["prompt"]:
            sys.stdin.readline()
            return signals.exit_code
        stopped.wait()
    except KeyboardInterrupt:
        tell(interrupted=True)
    return signals.exit_code


def swallowing(boot: dict[str, Any]) -> int:
    """Gets SIGTERM in a finalizer, where Python swallows exceptions, or while signals are held; then it can end."""
    from common.process.signals import StopSignals

    class Final:
        def __del__(self, kill: Any = os.kill, pid: int = os.getpid()) -> None:
            kill(pid, signal.SIGTERM)
            sum(range(1000))  # The handler runs between two instructions, so before the end of this call.

    signals, stopped = StopSignals(), threading.Event()
    if boot["holds"]:
        signals.hold()
    Final()
    tell(received=signals.received)
    signals.on_stop = stopped.set
    stopped.wait()
    return signals.exit_code


def robbed(boot: dict[str, Any]) -> int:
    """Puts its handlers back in a loop, after a library has taken the signals: from Python, or from ``C``."""
    from common.process.signals import StopSignals, put_signals_back

    signals, stopped = StopSignals(), threading.Event()
    signals.on_stop = stopped.set
    for number in (signal.SIGINT, signal.SIGTERM):
        if boot["language"] == "C":
            ctypes.CDLL(None).signal(ctypes.c_int(number), ctypes.c_void_p(1))  # SIG_IGN
        else:
            signal.signal(number, lambda *_: None)
    put_signals_back(time.monotonic())
    tell(pid=os.getpid())
    while not stopped.wait(0.01):
        put_signals_back(time.monotonic())
    return signals.exit_code


def forking(boot: dict[str, Any]) -> int:
    """Handles signals, or leaves them to its parent; says how processes end that it forks and then terminates."""
    from common.process.signals import StopSignals

    if boot["leaves"]:
        leave_to_parent()
    else:
        StopSignals().on_stop = lambda: None
    forked = multiprocessing.get_context("fork")
    at_once = forked.Process(target=threading.Event().wait)
    at_once.start()
    at_once.terminate()
    here, there = forked.Pipe()

    def interrupt_itself() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGHUP)
        there.send("still there")
        threading.Event().wait()

    later = forked.Process(target=interrupt_itself)
    later.start()
    tell(after_others=here.recv())
    later.terminate()
    for process in (at_once, later):
        process.join(boot["patience"])
    tell(codes=[at_once.exitcode, later.exitcode])
    for process in (at_once, later):
        process.kill()
    return 0


def late(boot: dict[str, Any]) -> int:
    """Gets SIGTERM while Python exits; with ``ignores`` it ignores signals by then."""
    from common.process.signals import StopSignals

    class Late:
        def __del__(self, kill: Any = os.kill, pid: int = os.getpid()) -> None:
            kill(pid, signal.SIGTERM)

    signals = StopSignals()
    globals()["_late"] = Late()
    if boot["ignores"]:
        signals.ignore()
    return 5


def main() -> int:
    told = read_boot()
    code: int = globals()[told["life"]](told)
    return code


if __name__ == "__main__":
    sys.exit(main())
