from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from common.process.kept_memory import KEEP_BUFFERS
from tests.conftest import ROOT

FREE_AND_FILL_AGAIN = """
import resource
from common.process.kept_memory import keep_buffers

keep_buffers()
bytes(32 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    bytearray(b"x") * (32 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_a_process_that_keeps_its_buffers_fills_freed_memory_without_page_faults() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in KEEP_BUFFERS}
    command = [sys.executable, "-c", FREE_AND_FILL_AGAIN]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 10 * (32 << 20) / 4096 / 2
