"""A fleet is upgraded while it runs: the former release's actors and learner work with the present ones.

The code of the former release comes out of git's history. It runs with the packages that are installed here.
"""

from __future__ import annotations

import io
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from learner.commands.admin_client import AdminClient, AdminTrust
from learner.ingest.cordons import Selection
from learner.shared.actor_table import map_actor_table
from tests.conftest import ROOT, Command, free_port, kill, wait_for
from tests.e2e.test_by_hand import CALM, ENDLESS, grows
from tests.e2e.test_resume import kept, resumed_at
from tests.stored import assert_stored

pytestmark = pytest.mark.own_children

FORMER = "a287a3ff8aa1375721dd4df06243d53f5184cfad"
"""The last commit of the former release that speaks this version of the protocol; moved on when a release is made."""


@pytest.fixture
def former(tmp_path: Path) -> Path:
    """A directory with the code of the former release, and the parts of its tests."""
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed, which has the code of the former release")
    packages = ("actor", "common", "crossborder", "learner", "tests")
    command = [git, "archive", "--format=zip", FORMER, *packages]
    archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"the history here does not reach back to {FORMER[:7]} (git fetch --unshallow): {archive.stderr!r}")
    with zipfile.ZipFile(io.BytesIO(archive.stdout)) as files:
        files.extractall(tmp_path / "former")
    return tmp_path / "former"


FIND_FIELDS = """
def find_fields(model, at=""):
    for name, field in model.model_fields.items():
        if name not in getattr(model, "LATER", ()):
            yield at + name
            for inner in models_in(field.annotation):
                yield from find_fields(inner, f"{at}{name}.")

from common.config.actor_config import ActorConfig
from common.settings import models_in
found = sorted(find_fields(ActorConfig))
"""
"""Finds every setting of actors, but those that its release marks as unknown to the release before."""


def test_every_setting_that_actors_of_the_former_release_do_not_know_is_marked_as_later(former: Path) -> None:
    asked = [sys.executable, "-c", f"{FIND_FIELDS}\nprint(*found)"]
    told = subprocess.run(
        asked, cwd=former, env={"PYTHONPATH": str(former)}, capture_output=True, check=True, text=True
    )
    scope: dict[str, Any] = {}
    exec(FIND_FIELDS, scope)  # noqa: S102 - it is above
    assert set(scope["found"]) - set(told.stdout.split()) == set(), "Settings.LATER of their model"


def test_actors_of_two_releases_train_with_either_learner_while_the_fleet_is_upgraded(
    former: Path, start: Callable[..., Command], write_config: Callable[..., Path], tmp_path: Path
) -> None:
    run_dir, address = tmp_path / "run", f"127.0.0.1:{free_port()}"
    # With ``prefix`` a Python of its own: other commands are forks of a process that has imported the present code.
    old: dict[str, Any] = {"python_path": former, "cwd": former, "prefix": ("env",)}
    trainer = {**ENDLESS, "checkpoint_seconds": 0.1}
    config = write_config(**{**CALM, "trainer": trainer}, server={"listen": address})
    server = start("learner-server", "--config", str(config), **old)
    leaving, staying = start("actor-worker", "--learner", address, **old), start("actor-worker", "--learner", address)
    pids = {leaving.process.pid, staying.process.pid}
    grows(run_dir, pids)
    wait_for(lambda: kept(run_dir) > 20, "the former learner trains from both")

    kill(server.process.pid)
    server.wait()
    server = start("learner-server", "--resume", str(run_dir))
    assert resumed_at(server) > 20
    grows(run_dir, pids)
    with closing(AdminClient(address, AdminTrust())) as client:
        (actor_id,) = (actor.actor_id for actor in client.fetch_status().actors if actor.pid == leaving.process.pid)
        assert client.drain(Selection(actor_ids=frozenset({actor_id}))) == 1
    assert leaving.wait() == 0, leaving.output()
    grows(run_dir, {staying.process.pid})
    server.signal(signal.SIGTERM)
    assert server.wait() == 128 + signal.SIGTERM, server.output()
    assert staying.wait() == 0, staying.output()

    table = map_actor_table(run_dir / "shared", create=False)
    known = table[table["pid"] > 0]
    assert set(known["pid"].tolist()) == pids, "no actor had to be started again"
    assert_stored(run_dir, {tag: int(row["env_steps"]) for tag, row in enumerate(known)})
