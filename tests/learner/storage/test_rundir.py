from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from common.errors import RunDirectoryError
from learner.storage.run_lock import reading
from learner.storage.rundir import RunDir, require_writable


def begin(run: RunDir) -> None:
    """Begin as ``Run`` does: a run has a state from its first moment on."""
    state = run.path / "checkpoints" / "0"
    state.mkdir(parents=True, exist_ok=True)
    (state / "manifest.json").write_text(json.dumps({"run_id": run.identity.run_id, "incarnation": 1}))
    run.begin()


def test_two_learners_cannot_use_one_run_directory(tmp_path: Path) -> None:
    first = RunDir(tmp_path / "run")
    with pytest.raises(RunDirectoryError, match="another learner is using"):
        RunDir(tmp_path / "run")
    first.close()


def test_a_run_is_not_written_over(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    begin(run)
    run.close()
    message = r"expected a new run directory, found a run \(run\.json, checkpoints/\); go on"
    with pytest.raises(RunDirectoryError, match=message):
        RunDir(tmp_path / "run")


def test_an_earlier_run_is_read_by_many_but_not_while_a_learner_uses_it(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    with pytest.raises(RunDirectoryError, match="another learner is using"), reading(tmp_path / "run"):
        pass
    run.close()
    with reading(tmp_path / "run"), reading(tmp_path / "run"), pytest.raises(RunDirectoryError, match="is using"):
        RunDir(tmp_path / "run")


def test_a_directory_that_is_not_a_runs_is_not_read_as_one(tmp_path: Path) -> None:
    with (
        pytest.raises(RunDirectoryError, match="cannot be read as a run's directory: lock: No such file"),
        reading(tmp_path),
    ):
        pass


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="file/run: cannot be written: Not a directory"):
        RunDir(tmp_path / "file" / "run")


def test_a_file_or_a_link_to_nothing_in_the_place_of_a_run_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("gone")
    for name, found in (("file", "a file"), ("link", "a link that leads nowhere")):
        for use in (RunDir, require_writable):
            with pytest.raises(RunDirectoryError, match=rf"{name}: expected a directory, found {found}$"):
                use(tmp_path / name)


def test_only_its_owner_may_look_inside(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    assert (tmp_path / "run").stat().st_mode & 0o077 == 0
    run.write_json("endpoints.json", {"a": 1})
    assert json.loads((tmp_path / "run" / "endpoints.json").read_text()) == {"a": 1}
    run.close()


def test_a_resumed_run_is_the_same_run_started_once_more(tmp_path: Path) -> None:
    lives = []
    for _ in range(3):  # The first finds no run and begins one.
        run = RunDir(tmp_path / "run", resume=True)
        begin(run)
        lives.append(run.identity)
        run.close()
    assert len({life.run_id for life in lives}) == 1
    assert lives[0].incarnation == 1
    assert 1 < lives[1].incarnation < lives[2].incarnation


def test_a_run_that_is_resumed_from_an_older_copy_has_a_higher_incarnation_than_every_start_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(path: Path, at: float) -> int:
        monkeypatch.setattr(time, "time", lambda: at)
        run = RunDir(path, resume=True)
        begin(run)
        run.close()
        return run.identity.incarnation

    start(tmp_path / "run", 1_000.0)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    later = [start(tmp_path / "run", 2_000.0), start(tmp_path / "run", 1_500.0)]  # The clock was put back.
    assert later == [2_000, 2_001]
    assert start(tmp_path / "copy", 3_000.0) == 3_000


def test_a_run_that_never_began_is_not_in_the_way_of_the_next_try(tmp_path: Path) -> None:
    first = RunDir(tmp_path / "run")
    (first.shared / "replay").mkdir()
    first.write_text("config.yaml", "seed: 0")  # Then a recorder could not be built.
    first.close()
    for resume in (False, True):
        again = RunDir(tmp_path / "run", resume=resume)
        assert list(again.shared.iterdir()) == []
        again.close()


def test_a_run_that_ends_between_its_first_checkpoint_and_its_beginning_can_be_resumed(tmp_path: Path) -> None:
    first = RunDir(tmp_path / "run")
    first.write_text("config.yaml", "seed: 0")
    state = tmp_path / "run" / "checkpoints" / "0"
    state.mkdir(parents=True)
    manifest = {"run_id": first.identity.run_id, "incarnation": 1}
    (state / "manifest.json").write_text(json.dumps(manifest))  # Then run.json could not be written.
    first.close()
    again = RunDir(tmp_path / "run", resume=True)
    assert (again.identity.run_id, again.is_resumed) == (first.identity.run_id, True)
    assert (again.path / "config.yaml").read_text() == "seed: 0"
    again.close()


def test_a_resumed_run_that_fails_to_come_up_stays(tmp_path: Path) -> None:
    for _ in range(2):
        run = RunDir(tmp_path / "run", resume=True)
        if not run.is_resumed:
            begin(run)
        run.close()
    assert RunDir(tmp_path / "run", resume=True).is_resumed


def test_a_resumed_run_removes_drafts_and_finds_the_checkpoint_that_was_being_replaced(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    begin(run)
    run.close()
    states = tmp_path / "run" / "checkpoints"
    (states / "0").rename(states / ".0.old")
    for draft in (states / ".0.part", tmp_path / "run" / ".50.part"):
        draft.mkdir()
    RunDir(tmp_path / "run", resume=True).close()
    assert [path.name for path in states.iterdir()] == ["0"]
    assert not (tmp_path / "run" / ".50.part").exists()


def test_nobody_finds_the_addresses_of_an_earlier_life(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    begin(run)
    run.write_json("endpoints.json", {"learner": "gone"})
    run.close()
    RunDir(tmp_path / "run", resume=True).close()
    assert not (tmp_path / "run" / "endpoints.json").exists()


def test_only_what_a_learner_makes_is_swept_up_after_a_start_that_was_killed(tmp_path: Path) -> None:
    shared = tmp_path / "run" / "shared"
    for name in ("replay", "sources/.demos.part"):
        (shared / name).mkdir(parents=True)
    ingest = ("quarantine-ingest.json", "cordons.json", "followed", "limits.json", "score.json")
    for name in (".control.part", "candidates", "quarantine-trainer.json", *ingest):
        (shared / name).touch()
    RunDir(tmp_path / "run").close()
    shared.mkdir()
    (shared / "thesis.tex").touch()
    with pytest.raises(RunDirectoryError, match=r"expected only files that a learner makes, found thesis\.tex"):
        RunDir(tmp_path / "run")
    assert (shared / "thesis.tex").exists()


def test_a_host_with_the_shard_of_another_rank_does_not_begin_a_new_run(tmp_path: Path) -> None:
    (tmp_path / "run" / "rank-1").mkdir(parents=True)
    (tmp_path / "run" / "rank-1" / "run.json").touch()
    with pytest.raises(RunDirectoryError, match=r"found shards of other ranks \(rank-1/run\.json\), but not .* rank 0"):
        RunDir(tmp_path / "run", resume=True)
    with pytest.raises(RunDirectoryError, match=r"expected a new run directory, found a run \(rank-1/run\.json\)"):
        RunDir(tmp_path / "run")


def test_a_run_keeps_the_most_ranks_with_which_it_has_begun(tmp_path: Path) -> None:
    for ranks, most in ((2, 2), (1, 2), (3, 3)):
        run = RunDir(tmp_path / "run", resume=True)
        begin(run)
        run.note_ranks(ranks)
        run.close()
        assert json.loads((tmp_path / "run" / "run.json").read_text())["n_ranks"] == most
