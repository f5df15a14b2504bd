from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.numpy import load

from common.data import NO_MODEL, ModelVersion
from common.process.clocks import Deadline
from common.shared.slots import N_SLOTS, Blob, ModelSlots
from learner.models.publisher import ModelPublisher
from tests.conftest import PATIENCE, ROOT


class Copied(NamedTuple):
    version: ModelVersion
    data: bytes


def publisher(directory: Path, tensors: dict[str, torch.Tensor]) -> tuple[ModelPublisher, ModelSlots]:
    made = ModelPublisher(directory / "models", tensors, incarnation=3)
    return made, ModelSlots(directory / "models", made.blob_bytes, create=False)


def whole(blob: Blob) -> Copied:
    return Copied(blob.version, bytes(blob.data))


def test_nothing_is_read_before_the_first_model(tmp_path: Path) -> None:
    _, slots = publisher(tmp_path, {"w": torch.zeros(2)})
    assert slots.newest() == NO_MODEL
    assert slots.read(whole) is None


@pytest.mark.parametrize("published", [1, 2, N_SLOTS, N_SLOTS + 4])
def test_the_newest_model_is_read_as_a_safetensors_file(tmp_path: Path, published: int) -> None:
    tensors = {"w": torch.zeros(2, 3), "steps": torch.zeros((), dtype=torch.int64), "on": torch.tensor([True])}
    made, slots = publisher(tmp_path, tensors)
    for step in range(published):
        tensors["w"].fill_(step + 0.5)
        tensors["steps"].fill_(step)
        made.publish(opt_steps=step)
    blob = slots.read(whole)
    assert blob is not None
    assert blob.version == slots.newest() == ModelVersion(3, published - 1)
    found = load(blob.data)
    assert found["w"].tolist() == [[published - 0.5] * 3] * 2
    assert found["steps"] == published - 1
    assert found["on"].tolist() == [True]


def test_a_publisher_killed_in_the_middle_leaves_the_model_before(tmp_path: Path) -> None:
    weights = torch.full((1000,), 1.0)
    made, slots = publisher(tmp_path, {"w": weights})
    made.publish(opt_steps=1)
    made.slots.slots[2].ticket = 0  # It had taken the next slot and begun to fill it.
    made.slots.data[2][-8:] = b"\x00" * 8
    blob = slots.read(whole)
    assert blob is not None
    assert blob.version == ModelVersion(3, 1)
    assert load(blob.data)["w"].tolist() == [1.0] * 1000


READER = """
import sys
from pathlib import Path
from safetensors.numpy import load
from common.shared.slots import ModelSlots
slots = ModelSlots(Path(sys.argv[1]), int(sys.argv[2]), create=False)
last, seen = None, 0
print("ready", flush=True)
while seen < 100:
    found = slots.read(lambda blob: (blob.version, bytes(blob.data)))
    if found is None:
        continue
    version, data = found
    assert (load(data)["w"] == version.opt_steps).all(), "torn"
    assert last is None or version >= last, "went backwards"
    seen += last != version
    last = version
"""


def test_a_reader_in_another_process_never_sees_a_torn_model_nor_an_older_one(tmp_path: Path) -> None:
    weights = torch.zeros(50_000)
    made, _ = publisher(tmp_path, {"w": weights})
    command = [sys.executable, "-c", READER, str(tmp_path / "models"), str(made.blob_bytes)]
    reader = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    assert reader.stdout.readline() == "ready\n"
    step, deadline = 0, Deadline(PATIENCE)
    while reader.poll() is None and not deadline.passed():
        step += 1
        weights.fill_(step)
        made.publish(opt_steps=step)
    reader.stdout.close()
    assert reader.wait(1) == 0
    assert step >= 100
