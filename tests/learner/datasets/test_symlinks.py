from __future__ import annotations

import os
from pathlib import Path

import pytest

from common.episode_files import write_episode
from common.errors import DatasetError
from learner.datasets.opening import open_dataset
from learner.datasets.symlinks import check_links
from tests.learner.datasets.robots import make_episode
from tests.learner.datasets.saved import save_replay


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A directory with one episode; another episode lies beside it."""
    (tmp_path / "demos" / "more").mkdir(parents=True)
    write_episode(tmp_path / "demos" / "0.npz", make_episode(0, 4))
    write_episode(tmp_path / "outside.npz", make_episode(1, 4))
    return tmp_path / "demos"


def test_a_link_out_of_a_dataset_is_refused_with_its_target_and_a_way_out(dataset: Path) -> None:
    (dataset / "1.npz").symlink_to("../outside.npz")
    with (
        pytest.raises(DatasetError, match=rf"{dataset}/1\.npz: .* a link to .*outside\.npz; .* cp -rL {dataset} COPY"),
        open_dataset(str(dataset)),
    ):
        pass


def test_links_that_lead_in_a_circle_are_named(dataset: Path) -> None:
    (dataset / "1.npz").symlink_to("2.npz")
    (dataset / "2.npz").symlink_to("1.npz")
    with (
        pytest.raises(DatasetError, match=r"[12]\.npz: expected a link to a file, found one that leads in a circle"),
        open_dataset(str(dataset)),
    ):
        pass


def test_a_directory_that_is_a_link_is_a_link_too(dataset: Path) -> None:
    (dataset / "more" / "data").symlink_to("/etc")
    with pytest.raises(DatasetError, match=r"more/data: .* found a link to /etc"):
        check_links(dataset)


def test_links_inside_a_dataset_and_to_it_are_followed(dataset: Path) -> None:
    (dataset / "more" / "1.npz").symlink_to("../0.npz")
    (dataset / "circle").symlink_to(".")
    (dataset.parent / "named").symlink_to(dataset)
    check_links(dataset.parent / "named")
    with open_dataset(str(dataset.parent / "named")) as found:
        assert len(found) == 5


def test_a_snapshot_of_the_hubs_cache_may_lead_to_its_blobs_but_no_further(tmp_path: Path) -> None:
    snapshot = tmp_path / "datasets--lerobot--pusht" / "snapshots" / "1a2b"
    (snapshot / "meta").mkdir(parents=True)
    blob = tmp_path / "datasets--lerobot--pusht" / "blobs" / "3c4d"
    blob.parent.mkdir()
    blob.touch()
    (snapshot / "meta" / "info.json").symlink_to("../../../blobs/3c4d")
    check_links(snapshot)
    (tmp_path / "other").touch()
    (snapshot / "other").symlink_to("../../../other")
    with pytest.raises(DatasetError, match="found a link to"):
        check_links(snapshot)


def test_a_pipe_is_refused_since_its_reader_would_wait_for_ever(dataset: Path) -> None:
    os.mkfifo(dataset / "1.npz")
    with (
        pytest.raises(DatasetError, match=r"1\.npz: expected a file, found a pipe or a device"),
        open_dataset(str(dataset)),
    ):
        pass


@pytest.mark.parametrize("name", ["lock", "shared/replay/column-x", "shared/replay"])
def test_the_replay_of_a_stranger_s_run_leads_nowhere_else(tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    save_replay(run, 10)
    (run / name).rename(tmp_path / "elsewhere")
    (run / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DatasetError, match=f"{name}: .* found a link to .*elsewhere"), open_dataset(str(run)):
        pass


def test_what_a_run_holds_beside_its_replay_may_be_elsewhere(tmp_path: Path) -> None:
    save_replay(tmp_path / "run", 10)
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path)
    with open_dataset(str(tmp_path / "run")) as found:
        assert len(found) == 10
