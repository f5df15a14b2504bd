from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from actor.model_share import ModelShare
from tests.conftest import ROOT


def test_the_directory_is_this_users_alone_and_is_removed_with_its_files(tmp_path: Path) -> None:
    share = ModelShare(tmp_path)
    (share.path / "file").write_bytes(b"model")
    assert share.path.stat().st_mode & 0o777 == 0o700
    share.close()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_a_killed_process_left_is_removed_by_the_next_and_one_in_use_is_kept(tmp_path: Path) -> None:
    code = "import sys, pathlib, actor.model_share as s; print(s.ModelShare(pathlib.Path(sys.argv[1])).path)"
    command = [sys.executable, "-c", code, str(tmp_path)]
    left = Path(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip())
    assert left.is_dir()
    used = ModelShare(tmp_path)
    assert not left.exists()
    other = ModelShare(tmp_path)
    assert used.path.is_dir()
    used.close()
    other.close()
