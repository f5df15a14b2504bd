"""The notebook that teaches: all its cells, in order, in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow
SOONER = {'"target_score": 475': '"target_score": 150', '"eval_interval": 1000': '"eval_interval": 250'}
"""Settings with which a run ends as soon as it has learnt enough to show it."""
CHECK = """
assert learnt > 4 * by_chance, (learnt, by_chance)
assert len(scores) > 1
assert with_actors.run_dir != run.run_dir
"""


def test_all_cells_run_and_the_learnt_policy_is_far_better_than_chance(tmp_path: Path) -> None:
    notebook = json.loads((ROOT / "docs" / "first-steps.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    text = "\n".join([*cells, CHECK])
    for written, sooner in SOONER.items():
        assert text.count(written) == 1
        text = text.replace(written, sooner)
    (tmp_path / "cells.py").write_text(text)
    command = [sys.executable, "cells.py"]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(cell["outputs"] == [] for cell in notebook["cells"] if cell["cell_type"] == "code"), (
        "outputs are not kept"
    )
