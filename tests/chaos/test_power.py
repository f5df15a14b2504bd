"""A real file system whose dirty pages are lost: whatever reached the disk, the run goes on and draws whole rows."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.fleet import Fleet
from tests.chaos.power import CAPACITY, Disk, cut, torn
from tests.conftest import wait_for
from tests.e2e.test_by_hand import ENDLESS
from tests.e2e.test_resume import kept

pytestmark = pytest.mark.own_children


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    try:
        found = Disk(tmp_path, tmp_path / "mounted")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted from a file here: {error}")
    yield found
    found.unmount()


def test_after_a_power_cut_the_learner_goes_on_and_no_row_is_torn(disk: Disk, tmp_path: Path) -> None:
    trainer = {**ENDLESS, "checkpoint_seconds": 1.0}
    with Fleet(tmp_path, 2, run_dir=disk.at / "run", trainer=trainer, replay={"capacity": CAPACITY}) as fleet:
        fleet.ready()
        fleet.take(2000)
        stored, synced = cut(fleet, disk), kept(fleet.run_dir)
        fleet.resume()
        wait_for(lambda: kept(fleet.run_dir) > synced, "training goes on")
        assert 0 < fleet.resumed_with() <= stored
        found = torn(fleet.run_dir)
    assert found.rows > 0
    assert (found.torn, found.doubled, found.mislinked) == (0, 0, 0)
