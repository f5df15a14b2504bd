from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common import episode_files
from common.data import Items
from common.episode_files import read_episode, read_headers, write_episode
from common.errors import ConfigError, DatasetError

STEPS = 5


def make_episode(**other: Any) -> Items:
    """An episode of two cameras, with ``other`` arrays; None leaves one out."""
    made = {
        "obs/front": np.arange((STEPS + 1) * 12, dtype=np.uint8).reshape(STEPS + 1, 3, 2, 2),
        "obs/wrist": np.zeros((STEPS + 1, 3, 2, 2), np.uint8),
        "action": np.linspace(0, 1, STEPS * 2, dtype=np.float32).reshape(STEPS, 2),
        "reward": np.arange(STEPS, dtype=np.float32),
        "terminated": np.arange(STEPS) == STEPS - 1,
        "truncated": np.zeros(STEPS, bool),
    }
    return {name: np.asarray(array) for name, array in (made | other).items() if array is not None}


def assert_same(found: Items, expected: Items) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_an_episode_is_read_as_it_was_written(tmp_path: Path) -> None:
    episode = make_episode(**{"info/force": np.ones((STEPS, 3)), "intervened": np.arange(STEPS) > 2})
    write_episode(tmp_path / "one.npz", episode)
    assert_same(read_episode(tmp_path / "one.npz"), episode)
    assert [path.name for path in tmp_path.iterdir()] == ["one.npz"]


@pytest.mark.parametrize(
    ("name", "value", "at"), [("obs/pose", np.nan, [2, 1]), ("action", -np.inf, [2, 1]), ("reward", np.inf, [2])]
)
def test_values_that_are_not_finite_are_refused_with_their_place_and_leave_no_file(
    tmp_path: Path, name: str, value: float, at: list[int]
) -> None:
    episode = make_episode(**{"obs/pose": np.zeros((STEPS + 1, 2), np.float16), "info/force": np.full(STEPS, np.nan)})
    write_episode(tmp_path / "good.npz", episode)
    episode[name][tuple(at)] = value
    with pytest.raises(DatasetError, match=re.escape(f"array '{name}': expected finite values, found {value} at {at}")):
        write_episode(tmp_path / "bad.npz", episode)
    assert [path.name for path in tmp_path.iterdir()] == ["good.npz"]


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("obs", [[1, 2], [1]], r"array 'obs': expected rows of one shape, found \[\[1, 2\], \[1\]\]"),
        ("note", [[1], [1, 2]], "array 'note': expected rows of one shape"),
        ("note", np.array([{1}, None]), r"array 'note': expected numbers, found object \[2\]"),
    ],
)
def test_ragged_arrays_and_arrays_of_objects_are_refused_by_name(
    tmp_path: Path, name: str, values: Any, message: str
) -> None:
    with pytest.raises(DatasetError, match=message):
        write_episode(tmp_path / "one.npz", {**make_episode(), name: values})
    assert not list(tmp_path.iterdir())


def test_the_headers_are_those_of_the_arrays(tmp_path: Path) -> None:
    write_episode(tmp_path / "one.npz", make_episode())
    headers = read_headers(tmp_path / "one.npz")
    assert str(headers["obs/front"]) == "uint8 [6, 3, 2, 2]"
    assert headers.keys() == make_episode().keys()


def test_a_flag_may_be_that_of_the_last_step_alone(tmp_path: Path) -> None:
    write_episode(tmp_path / "one.npz", make_episode(terminated=True, truncated=np.array(0)))
    assert_same(read_episode(tmp_path / "one.npz"), make_episode())


def test_an_episode_without_an_end_counts_as_cut_off(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", **make_episode(terminated=None, truncated=None))  # type: ignore[arg-type]
    found = read_episode(tmp_path / "one.npz")
    assert not found["terminated"].any()
    assert found["truncated"].tolist() == [False] * (STEPS - 1) + [True]


def test_lists_are_written_as_arrays_to_a_path_that_is_a_text(tmp_path: Path) -> None:
    episode = make_episode(terminated=True, truncated=False)
    write_episode(str(tmp_path / "one.npz"), {name: np.asarray(values).tolist() for name, values in episode.items()})
    assert read_episode(tmp_path / "one.npz")["reward"].tolist() == np.asarray(episode["reward"]).tolist()


def test_a_file_that_no_reader_would_find_is_not_written(tmp_path: Path) -> None:
    for name in ("one.np", ".one.npz"):
        with pytest.raises(ConfigError, match=rf"path: expected a name such as 0001\.npz, found '.*{name}'"):
            write_episode(tmp_path / name, make_episode())
    with pytest.raises(ConfigError, match="path: expected a path, found 3"):
        write_episode(3, make_episode())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"columns: expected arrays by their names.*found \[1, 2\]"):
        write_episode(tmp_path / "one.npz", [1, 2])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"columns: expected arrays by their names.*found \{3: "):
        write_episode(tmp_path / "one.npz", {3: np.zeros(2)})  # type: ignore[dict-item]
    assert not any(tmp_path.iterdir())


def test_other_arrays_are_left_out(tmp_path: Path) -> None:
    others = {
        "task": np.array("open the door"),
        "log_prob": np.zeros(2),
        "reward/own": np.zeros(STEPS),
        "info": np.ones(2),
    }
    write_episode(tmp_path / "one.npz", make_episode(**others))
    assert_same(read_episode(tmp_path / "one.npz"), make_episode())


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"reward": None, "rewards": np.zeros(STEPS)}, r"expected an array 'reward', .*did you mean 'rewards'"),
        ({"reward": None, "reward/own": np.zeros(STEPS)}, r"expected an array 'reward', found .*'reward/own'"),
        ({"action": None}, r"expected an array 'action', found 'obs/front', 'obs/wrist', 'reward'"),
        ({"reward": np.zeros((STEPS, 1))}, r"'reward': expected the shape \[T\] .* found float64 \[5, 1\]"),
        ({"reward": np.zeros(0)}, r"'reward': expected the shape \[T\] of at least one step, found float64 \[0\]"),
        (
            {"obs/wrist": np.zeros((STEPS, 3), np.uint8)},
            r"'obs/wrist': expected the shape \[6, …\] in an episode of 5 steps, found uint8 \[5, 3\]; the observation",
        ),
        ({"action": np.zeros((STEPS + 1, 2))}, r"'action': expected the shape \[5, …\] .* found float64 \[6, 2\]"),
        ({"action": np.array(["left"] * STEPS)}, r"'action': expected a float, integer or bool dtype, found <U4 \[5\]"),
        ({"terminated": np.zeros(STEPS)}, r"'terminated': expected bool, found float64 \[5\]"),
        ({"intervened": np.array(1)}, r"'intervened': expected the shape \[5\]"),
    ],
)
def test_arrays_that_are_no_episode_are_named_and_not_written(
    tmp_path: Path, other: dict[str, Any], message: str
) -> None:
    path = tmp_path / "bad.npz"
    with pytest.raises(DatasetError, match=message):
        write_episode(path, make_episode(**other))
    assert not any(tmp_path.iterdir())
    np.savez(path, **make_episode(**other))  # type: ignore[arg-type]
    with pytest.raises(DatasetError, match=f"bad.npz: .*{message}"):
        read_headers(path)


def test_an_end_before_the_last_step_is_named(tmp_path: Path) -> None:
    named = r"two.npz: array 'truncated': .* found True at step 1: more than one episode"
    episode = make_episode(truncated=np.arange(STEPS) == 1)
    with pytest.raises(DatasetError, match=named):
        write_episode(tmp_path / "two.npz", episode)
    np.savez(tmp_path / "two.npz", **episode)  # type: ignore[arg-type]
    with pytest.raises(DatasetError, match=named):
        read_episode(tmp_path / "two.npz")


def test_a_flag_is_false_or_true(tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", **make_episode(terminated=np.full(STEPS, 2)))  # type: ignore[arg-type]
    with pytest.raises(DatasetError, match=r"bad.npz: array 'terminated': expected False and True, found 2"):
        read_episode(tmp_path / "bad.npz")


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", **make_episode(action=np.array([None] * STEPS)))  # type: ignore[arg-type]
    with pytest.raises(DatasetError, match=r"bad.npz: array 'action': expected a float, .* found object \[5\]"):
        read_episode(tmp_path / "bad.npz")


def test_an_array_with_fewer_bytes_than_its_header_says_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    write_episode(path, make_episode())
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    contents["reward.npy"] = contents["reward.npy"].replace(b"(5,), }" + 12 * b" ", b"(5000000000000,), }")
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    with pytest.raises(DatasetError, match=r"bad.npz: .*array 'reward': expected \d+ bytes of float32 .*, found 20"):
        read_headers(path)


def test_an_encrypted_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    write_episode(path, make_episode())
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1  # The flag of the first entry of the directory.
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"bad.npz: expected an episode .* cannot be read: .* is encrypted"):
        read_headers(path)


def test_a_file_that_was_cut_or_damaged_is_named(tmp_path: Path) -> None:
    path = tmp_path / "one.npz"
    write_episode(path, make_episode())
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DatasetError, match=r"one.npz: expected an episode as an .npz file, which cannot be read"):
        read_headers(path)
    place = whole.index(make_episode()["action"].tobytes())
    path.write_bytes(whole[:place] + b"\xff" + whole[place + 1 :])
    with pytest.raises(DatasetError, match=r"one.npz: expected .* cannot be read: Bad CRC-32 .*'action.npy'"):
        read_episode(path)


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (5,",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': 5,)}",
        b"{'descr': '<f4', b'fortran_order': False, 'shape': (5,)}",
    ],
    ids=["cut off", "no Python", "bytes as a key"],
)
def test_a_damaged_header_is_named(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "bad.npz"
    write_episode(path, make_episode())
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    reward = contents["reward.npy"]
    contents["reward.npy"] = reward[:10] + header.ljust(len(reward) - 10 - 4 * STEPS - 1) + b"\n" + reward[-4 * STEPS :]
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    with pytest.raises(DatasetError, match=r"bad.npz: .* cannot be read: array 'reward': its header is damaged"):
        read_headers(path)


def test_a_damaged_file_of_another_compression_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    np.savez(path, **make_episode())  # type: ignore[arg-type]
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    assert_same(read_episode(path), make_episode())
    damaged = bytearray(path.read_bytes())
    begin = len("obs/front.npy") + 30 + 9  # After the names and sizes, and the properties of the compression.
    damaged[begin : begin + 8] = b"\xff" * 8
    path.write_bytes(damaged)
    with pytest.raises(DatasetError, match=r"bad.npz: expected an episode .* cannot be read"):
        read_headers(path)


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "one.npz").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_episode(tmp_path / "one.npz", make_episode())
    assert [path.name for path in tmp_path.iterdir()] == ["one.npz"]


def test_a_small_file_of_very_large_arrays_is_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episode_files, "SMALL_BYTES", 1 << 20)
    arrays: dict[str, Any] = {"obs": np.zeros((2, 1 << 20), np.uint8), "action": np.zeros(1), "reward": np.zeros(1)}
    np.savez(tmp_path / "whole.npz", **arrays)
    assert read_episode(tmp_path / "whole.npz").keys() >= arrays.keys()
    np.savez_compressed(tmp_path / "small.npz", **arrays)
    for read in (read_headers, read_episode):
        with pytest.raises(DatasetError, match=r"small.npz: expected contents of at most 100 times the file's own"):
            read(tmp_path / "small.npz")
