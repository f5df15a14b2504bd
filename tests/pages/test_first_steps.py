"""The notebook that teaches: all its cells, in order, in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow
CHECK = """
assert learnt > 4 * by_chance, (learnt, by_chance)
assert len(scores) > 1
assert with_actors.run_dir != run.run_dir
"""


def test_all_cells_run_and_the_learnt_policy_is_far_better_than_chance(tmp_path: Path) -> None:
    notebook = json.loads((ROOT / "docs" / "first-steps.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    (tmp_path / "cells.py").write_text("\n".join([*cells, CHECK]))
    command = [sys.executable, "cells.py"]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(cell["outputs"] == [] for cell in notebook["cells"] if cell["cell_type"] == "code"), (
        "outputs are not kept"
    )
