"""A process ends although users' code has left something running in it.

Before Python ends, it waits for threads, for the processes of ``multiprocessing`` and for functions that are registered
with ``atexit``, without a limit. By then a command ignores signals.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)
TOLD_SECONDS: Final = 5.0
"""After this time the log names the threads and processes that are left."""
END_SECONDS: Final = 60.0
"""After this time the process ends without what is left; it is long enough to upload a file."""
TELL_SECONDS: Final = 5.0
"""The most time that it then takes to tell: a thread that is left may hold a lock of the log."""


def end_in_time(main: Callable[[], int]) -> int:
    """Call the main function of a process; return its exit code, with which the process ends in time after it.

    Nothing but the end of the process may come after this.
    """
    code = 1  # That of an exception.
    try:
        code = main()
    except SystemExit as error:
        code = 0 if error.code is None else error.code if isinstance(error.code, int) else 1
        raise
    finally:
        threading.Thread(target=_end, args=(code,), name="ending", daemon=True).start()
    return code


def _end(code: int) -> None:
    """End this process, unless Python ends it before."""
    time.sleep(TOLD_SECONDS)
    telling = threading.Thread(target=_tell, name="telling", daemon=True)
    telling.start()
    time.sleep(END_SECONDS - TOLD_SECONDS)
    telling.join(TELL_SECONDS)
    try:
        for child in multiprocessing.active_children():
            child.kill()
    finally:
        os._exit(code)


def _tell() -> None:
    running = _describe_running() or "a function that is registered with atexit"
    seconds = END_SECONDS - TOLD_SECONDS
    log.warning("this process would end now, but waits for %s; it ends without that in %g s", running, seconds)
    sys.stdout.flush()


def _describe_running() -> str:
    main = threading.main_thread()
    threads = [f"the thread {each.name}" for each in threading.enumerate() if not (each.daemon or each is main)]
    children = [f"the process {each.pid} ({each.name})" for each in multiprocessing.active_children()]
    return ", ".join(threads + children)
