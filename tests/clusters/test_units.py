"""systemd itself reads the units of deploy/systemd."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
pytestmark = [
    pytest.mark.clusters,
    pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="not installed: systemd-analyze"),
]


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_systemd_finds_nothing_wrong(unit: Path, tmp_path: Path) -> None:
    for name in ("learner-server", "actor-worker", "policy-server"):
        (tmp_path / name).symlink_to("/bin/true")
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/crossborder/bin", str(tmp_path)))
    found = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False, timeout=60)  # noqa: S607
    assert (found.returncode, found.stdout + found.stderr) == (0, "")
