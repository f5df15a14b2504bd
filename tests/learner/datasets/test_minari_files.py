from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from PIL import Image

from common.errors import DatasetError
from crossborder.testing import play
from learner.datasets.opening import open_dataset
from tests.learner.datasets.test_minari_episodes import COUNTING, parts
from tests.learner.recordings import SOURCE, record
from tests.parts import CountingEnv, counting_action

SECRETS = "/etc/hostname"
"""A file outside the dataset that each host has."""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of a dataset of 12 steps."""
    record(tmp_path, monkeypatch, play(CountingEnv(), 12, policy=counting_action), COUNTING)
    return tmp_path / "tests" / "played-v0" / "data"


def read(source: str = SOURCE) -> int:
    """Read all rows of a dataset; return its length."""
    with open_dataset(source) as dataset:
        assert list(dataset.items(parts(CountingEnv())))
        return len(dataset)


def change(data: Path, **entries: Any) -> None:
    """Change entries of ``metadata.json``; None removes one."""
    about = json.loads((data / "metadata.json").read_text()) | entries
    (data / "metadata.json").write_text(json.dumps({name: value for name, value in about.items() if value is not None}))


def test_the_length_is_that_of_the_file_whatever_the_metadata_say(data: Path) -> None:
    length = read()
    change(data, total_steps=10**15)
    assert read() == length == 12 + json.loads((data / "metadata.json").read_text())["total_episodes"]


def link_softly(episode: Any, data: Path) -> None:
    del episode["rewards"]
    episode["rewards"] = h5py.SoftLink("/episode_1/rewards")


def link_to_another_file(episode: Any, data: Path) -> None:
    with h5py.File(data.parent.parent / "other.hdf5", "w") as other:
        other["rewards"] = episode["rewards"][()]
    del episode["rewards"]
    episode["rewards"] = h5py.ExternalLink(str(data.parent.parent / "other.hdf5"), "/rewards")


def give_two_names(episode: Any, data: Path) -> None:
    episode["again"] = episode["rewards"]


def go_in_a_circle(episode: Any, data: Path) -> None:
    infos = episode.require_group("infos")
    infos["more"] = infos


def read_raw_bytes(episode: Any, data: Path) -> None:
    del episode["rewards"]
    episode.create_dataset("rewards", (4,), np.uint8, external=[(SECRETS, 0, 4)])


def read_virtually(episode: Any, data: Path) -> None:
    link_to_another_file(episode, data)
    del episode["rewards"]
    layout = h5py.VirtualLayout((4,), np.float32)
    layout[:] = h5py.VirtualSource(str(data.parent.parent / "other.hdf5"), "rewards", (4,))
    episode.create_virtual_dataset("rewards", layout)


def declare_far_more(episode: Any, data: Path) -> None:
    del episode["rewards"]
    episode.create_dataset("rewards", (1 << 40,), np.float32, chunks=(1 << 20,))  # None of its chunks is stored.


def inflate(episode: Any, data: Path) -> None:
    infos = episode.require_group("infos")
    zeros = infos.create_dataset("zeros", (1 << 25,), np.uint8, chunks=(1 << 25,), compression="gzip")
    zeros[:] = np.zeros(1 << 25, np.uint8)


def store_objects(episode: Any, data: Path) -> None:
    episode.require_group("infos")["pairs"] = np.zeros(3, [("a", "<f4"), ("b", "<f4")])


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (link_softly, "'episode_0/rewards': expected values in the file itself, found a link"),
        (link_to_another_file, "'episode_0/rewards': expected values in the file itself, found a link"),
        (give_two_names, "expected one name of each array, found another name"),
        (go_in_a_circle, "'episode_0/infos/more': expected one name of each array, found another name"),
        (read_raw_bytes, "'episode_0/rewards': expected values in the file itself, found those of other files"),
        (read_virtually, "'episode_0/rewards': expected values in the file itself, found those of other files"),
        (declare_far_more, r"main_data\.hdf5: expected contents of at most 100 times the file's own"),
        (inflate, r"main_data\.hdf5: expected contents of at most 100 times the file's own"),
        (store_objects, "'episode_0/infos/pairs': expected numbers, texts or pictures, found"),
    ],
)
def test_a_file_that_leads_elsewhere_or_declares_far_more_than_it_has_is_refused_before_minari_reads_it(
    data: Path, attack: Callable[[Any, Path], None], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(data / "main_data.hdf5", "a") as file:
        attack(file["episode_0"], data)
    monkeypatch.setattr("common.episode_files.SMALL_BYTES", 1 << 20)
    monkeypatch.setattr("minari.MinariDataset", None)
    with pytest.raises(DatasetError, match=message):
        read()


def test_texts_that_are_one_long_text_again_and_again_are_counted_by_their_lengths(data: Path) -> None:
    """The file has the long text once, and a reference of 16 bytes to it in each place."""
    path = data / "main_data.hdf5"
    with h5py.File(path, "a") as file:
        texts = file["episode_0"].require_group("infos").create_dataset("texts", (5000,), h5py.string_dtype())
        texts[0] = "x" * (1 << 20)
    content = bytearray(path.read_bytes())
    with h5py.File(path, "r") as file:
        begin = file["episode_0/infos/texts"].id.get_offset()
    content[begin : begin + 16 * 5000] = content[begin : begin + 16] * 5000
    path.write_bytes(content)
    with pytest.raises(DatasetError, match="expected contents of at most 100 times the file's own"):
        read()


def test_a_dataset_without_its_spaces_does_not_run_the_code_of_its_environment(data: Path) -> None:
    ran = data / "ran"
    spec = {"id": "Evil-v0", "entry_point": "os:mkdir", "kwargs": {"path": str(ran)}, "additional_wrappers": []}
    change(data, observation_space=None, env_spec=json.dumps(spec))
    with pytest.raises(DatasetError, match=r"metadata\.json: expected an entry 'observation_space', found none"):
        read()
    assert not ran.exists()


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"total_episodes": 10**12}, "total_episodes: expected at most the .* found 1000000000000"),
        ({"total_episodes": "many"}, "cannot be read"),
        ({"data_format": "arrow"}, "data_format: expected hdf5, found 'arrow'"),
        ({"observation_space": "[" * 100_000}, "cannot be read"),
        ({"observation_space": "7"}, "cannot be read"),
        ({"action_space": '{"type": "MultiBinary", "n": [1e400]}'}, "cannot be read"),
        ({"observation_space": json.dumps({"type": "Secret"})}, "cannot be read"),
        (
            {
                "observation_space": json.dumps(
                    {
                        "type": "Tuple",
                        "subspaces": [{"type": "Box", "dtype": "<f4", "shape": [10**11], "low": 0, "high": 1}],
                    }
                )
            },
            r"expected bounds of the shape \[100000000000\], found \(\)",
        ),
    ],
)
def test_metadata_that_declare_far_more_or_are_damaged_are_named(
    data: Path, entries: dict[str, Any], message: str
) -> None:
    change(data, **entries)
    with pytest.raises(DatasetError, match=message):
        read()


PICTURES = Box(0, 255, (64, 48, 3), np.uint8)


def jpeg(height: int, width: int) -> np.ndarray[Any, Any]:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((height, width, 3), np.uint8)).save(buffer, format="JPEG")
    return np.frombuffer(buffer.getvalue(), np.uint8)


def store_pictures(data: Path, pictures: list[Any], space: Any = PICTURES) -> None:
    """Give the dataset observations of pictures, under ``camera`` and in a tuple."""
    from minari.serialization import serialize_space  # type: ignore[import-untyped]

    change(data, observation_space=serialize_space(Dict({"camera": space, "two": Tuple((Discrete(2), space))})))
    with h5py.File(data / "main_data.hdf5", "a") as file:
        for episode in file.values():
            del episode["observations"]
            for name in ("camera", "two/_index_1"):
                stored = episode.create_dataset(f"observations/{name}", (len(pictures),), h5py.vlen_dtype(np.uint8))
                for i, picture in enumerate(pictures):
                    stored[i] = picture


def test_pictures_of_another_size_than_their_space_are_refused_before_minari_makes_room_for_all(data: Path) -> None:
    store_pictures(data, [jpeg(6000, 5000), *[jpeg(64, 48)] * 3])
    with pytest.raises(DatasetError, match=r"/camera|/_index_1': expected pictures \[64, 48\], found \[6000, 5000\]"):
        read()


def test_pictures_that_inflate_to_far_more_than_the_file_are_refused(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_pictures(data, [jpeg(64, 48)] * 48)
    monkeypatch.setattr("common.episode_files.SMALL_BYTES", 0)
    monkeypatch.setattr("common.episode_files.MOST_INFLATED", 1)
    with pytest.raises(DatasetError, match="expected contents of at most 1 times the file's own"):
        read()


def test_a_damaged_picture_is_named(data: Path) -> None:
    store_pictures(data, [np.frombuffer(b"no picture", np.uint8)] * 4)
    with pytest.raises(DatasetError, match="cannot be read"):
        read()
