"""The host that a result comes from, and what its GPU does meanwhile."""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

QUERY_SECONDS: Final = 20.0
DMON: Final = ("nvidia-smi", "dmon", "--select", "ut", "--delay", "1")
"""Utilisation and PCIe throughput, one line a second."""
SHOWN: Final = {"sm": "GPU busy %", "mem": "GPU memory busy %", "rxpci": "PCIe in MB/s", "txpci": "PCIe out MB/s"}


def describe_host() -> dict[str, object]:
    """Card, driver, date, torch and processor."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        **_describe_card(),
        "torch": version("torch"),
        "processor": model.group(1) if model else "unknown",
        "cores": len(os.sched_getaffinity(0)),
    }


def _describe_card() -> dict[str, object]:
    if shutil.which("nvidia-smi") is None:
        return {"card": "none", "driver": "none"}
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    told = subprocess.run(query, capture_output=True, text=True, check=True, timeout=QUERY_SECONDS)
    card, driver = told.stdout.splitlines()[0].split(", ")
    return {"card": card, "driver": driver}


@contextmanager
def watch_gpu() -> Iterator[dict[str, float]]:
    """Means of the GPU's utilisation and of PCIe traffic, entered when the context ends; nothing without a GPU."""
    means: dict[str, float] = {}
    if shutil.which("nvidia-smi") is None:
        yield means
        return
    with subprocess.Popen(DMON, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as monitor:
        try:
            yield means
        finally:
            monitor.terminate()
            told, _ = monitor.communicate(timeout=QUERY_SECONDS)
    means.update(read_dmon(told))


def read_dmon(told: str) -> dict[str, float]:
    """The mean of each column that is shown, from what ``nvidia-smi dmon`` printed; none without a line of figures."""
    lines = told.splitlines()
    heads = next((line.lstrip("# ").split() for line in lines if line.startswith("# gpu")), [])
    rows = [dict(zip(heads, line.split(), strict=False)) for line in lines if line and not line.startswith("#")]
    found = {head: [float(row[head]) for row in rows if row.get(head, "-") != "-"] for head in SHOWN}
    return {SHOWN[head]: statistics.fmean(values) for head, values in found.items() if values}
