"""Models that processes of one host share: real files, and processes that are killed."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save

from actor.client.assembly import ModelFile
from actor.client.shared_models import NeighbourModels, TrainerModels, find_shared_models
from common.data import Model, ModelVersion
from common.shared.slots import ModelSlots
from common.wire.tensor_file import read_tensors
from learner.models.publisher import ModelPublisher
from tests.conftest import PATIENCE, ROOT

OLD, NEW, NEWEST = ModelVersion(1, 5), ModelVersion(1, 9), ModelVersion(2, 0)
ROOM = 1 << 20


class Learner:
    """Gives a model over and over, and counts; ``fetch`` stands for a call over gRPC."""

    def __init__(self, version: ModelVersion, size: int = 8) -> None:
        self.version, self.size, self.fetches = version, size, 0

    def fetch(self) -> ModelFile | None:
        self.fetches += 1
        data = np.frombuffer(save({"w": np.full(self.size, self.version.opt_steps, np.float32)}), np.uint8).copy()
        return ModelFile(Model(self.version, read_tensors(data)), data)


def neighbour(directory: Path, run_id: str = "run", *, candidates: bool = False) -> NeighbourModels:
    return NeighbourModels(directory, run_id, threading.Event(), candidates=candidates)


def weights(file: ModelFile | None) -> tuple[ModelVersion, float]:
    assert file is not None
    return file.model.version, float(np.unique(file.model.params["w"]).item())


def publish(path: Path, step: int, run_id: str = "run", incarnation: int = 1) -> ModelPublisher:
    path.unlink(missing_ok=True)
    made = ModelPublisher(path, {"w": torch.full((8,), float(step))}, incarnation, run_id=run_id)
    made.publish(step)
    return made


def test_a_local_actor_reads_the_trainers_slot_and_asks_nobody(tmp_path: Path) -> None:
    publish(tmp_path / "models", 9)
    models, learner = TrainerModels(tmp_path / "models", "run"), Learner(NEW)
    assert weights(models.get(NEW, ROOM, learner.fetch)) == (NEW, 9)
    assert learner.fetches == 0


def test_slots_that_a_resumed_learner_made_anew_are_opened_again(tmp_path: Path) -> None:
    publish(tmp_path / "models", 9)
    models, learner = TrainerModels(tmp_path / "models", "run"), Learner(NEWEST)
    models.get(NEW, ROOM, learner.fetch)
    publish(tmp_path / "models", 0, incarnation=2)
    assert weights(models.get(NEWEST, ROOM, learner.fetch)) == (NEWEST, 0)
    assert learner.fetches == 0


@pytest.mark.parametrize("found", ["another run", "an older model", "no file", "another file"])
def test_where_the_slots_do_not_have_the_announced_model_the_learner_is_asked(tmp_path: Path, found: str) -> None:
    path = tmp_path / "models"
    if found == "another run":
        publish(path, 9, run_id="other")
    elif found == "an older model":
        publish(path, 5)
    elif found == "another file":
        path.write_bytes(b"no slots" * 100)
    learner = Learner(NEW)
    assert weights(TrainerModels(path, "run").get(NEW, ROOM, learner.fetch)) == (NEW, 9)
    assert learner.fetches == 1


def test_a_model_that_is_too_large_for_the_agent_is_refused(tmp_path: Path) -> None:
    publish(tmp_path / "models", 9)
    with pytest.raises(ValueError, match="expected up to 10 bytes"):
        TrainerModels(tmp_path / "models", "run").get(NEW, 10, Learner(NEW).fetch)


def test_four_workers_fetch_each_model_once(tmp_path: Path) -> None:
    learner, found = Learner(NEW), list[tuple[ModelVersion, float]]()

    def work() -> None:
        found.append(weights(neighbour(tmp_path).get(NEW, ROOM, learner.fetch)))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE)
    assert found == [(NEW, 9)] * 4
    assert learner.fetches == 1


def test_runs_and_candidates_do_not_mix(tmp_path: Path) -> None:
    learners = [Learner(NEW), Learner(ModelVersion(1, 11)), Learner(ModelVersion(1, 12))]
    groups = [neighbour(tmp_path), neighbour(tmp_path, "other"), neighbour(tmp_path, candidates=True)]
    for _ in range(2):
        read = [group.get(OLD, ROOM, learner.fetch) for group, learner in zip(groups, learners, strict=True)]
        assert [weights(file)[1] for file in read] == [9, 11, 12]
    assert [learner.fetches for learner in learners] == [1, 1, 1]


def test_models_of_another_size_get_new_slots(tmp_path: Path) -> None:
    first, second = neighbour(tmp_path), neighbour(tmp_path)
    first.get(NEW, ROOM, Learner(NEW).fetch)
    learner = Learner(NEWEST, size=4)
    assert weights(second.get(NEWEST, ROOM, learner.fetch)) == (NEWEST, 0)
    assert weights(first.get(NEWEST, ROOM, learner.fetch)) == (NEWEST, 0)
    assert learner.fetches == 1


HOLDER = """
import sys, threading
from pathlib import Path
from actor.client.shared_models import NeighbourModels
from common.data import ModelVersion
def fetch():
    print("holds", flush=True)
    sys.stdin.read()
NeighbourModels(Path(sys.argv[1]), "run", threading.Event(), candidates=False).get(ModelVersion(1, 9), 1 << 20, fetch)
"""


def test_a_worker_that_is_killed_while_it_fetches_blocks_nobody(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holds\n"
        learner = Learner(NEW)
        waiter = threading.Thread(target=lambda: neighbour(tmp_path).get(NEW, ROOM, learner.fetch))
        waiter.start()
        assert learner.fetches == 0
        holder.kill()
        waiter.join(PATIENCE)
    assert learner.fetches == 1


def test_a_worker_that_is_killed_while_it_writes_leaves_the_model_before_and_the_next_writes(
    tmp_path: Path,
) -> None:
    neighbour(tmp_path).get(OLD, ROOM, Learner(OLD).fetch)
    (path,) = (file for file in tmp_path.iterdir() if file.suffix != ".lock")
    slots = ModelSlots.open(path, writable=True)
    slots.slots[2].ticket = 0  # It had begun to fill the next slot.
    slots.data[2][-8:] = b"\x07" * 8
    other = neighbour(tmp_path)
    assert weights(other.get(OLD, ROOM, Learner(NEW).fetch)) == (OLD, 5)
    learner = Learner(NEW)
    assert weights(other.get(NEW, ROOM, learner.fetch)) == (NEW, 9)
    assert weights(neighbour(tmp_path).get(NEW, ROOM, learner.fetch)) == (NEW, 9)
    assert learner.fetches == 1


def test_a_neighbour_that_holds_the_lock_for_too_long_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("actor.client.shared_models.transfer_seconds", lambda n_bytes: 0.05)
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holds\n"
        models, looks = neighbour(tmp_path), list[float]()
        monkeypatch.setattr(models._stopped, "wait", looks.append)
        assert weights(models.get(NEW, ROOM, Learner(NEW).fetch)) == (NEW, 9)
        assert looks, "it waited for its neighbour"
        looks.clear()
        assert weights(models.get(NEW, ROOM, Learner(NEW).fetch)) == (NEW, 9)
        assert not looks, "it does not wait for this neighbour again"
        assert caplog.text.count("another process of this host keeps the lock on models") == 1
        holder.kill()


def test_without_room_for_slots_a_worker_fetches_for_itself(tmp_path: Path) -> None:
    learner, models = Learner(NEW), neighbour(tmp_path / "gone")
    assert weights(models.get(NEW, ROOM, learner.fetch)) == (NEW, 9)
    assert weights(models.get(NEW, ROOM, learner.fetch)) == (NEW, 9)
    assert learner.fetches == 2


def test_a_directory_is_shared_by_workers_and_a_file_is_the_trainers(tmp_path: Path) -> None:
    stopped = threading.Event()
    assert isinstance(find_shared_models(tmp_path, "run", stopped, candidates=False), NeighbourModels)
    assert isinstance(find_shared_models(tmp_path / "models", "run", stopped, candidates=False), TrainerModels)
    assert find_shared_models(None, "run", stopped) is None
