from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import ConfigError
from common.wire.watched import Watched


def number_in(path: Path) -> list[int]:
    try:
        return [int(path.read_text())]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: expected a number") from error


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "number"
    path.write_text("1")
    return path


def test_the_value_is_the_same_object_until_the_file_changes(path: Path) -> None:
    watched = Watched([path], lambda: number_in(path))
    first = watched.get()
    assert watched.get() is first
    path.write_text("12")
    assert watched.get() == [12]


def test_a_change_that_cannot_be_read_is_logged_once_and_the_value_stays(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched([path], lambda: number_in(path))
    path.write_text("none")
    assert (watched.get(), watched.get()) == ([1], [1])
    assert caplog.text.count("expected a number") == 1
    path.unlink()
    assert watched.get() == [1]
    path.write_text("22")
    assert watched.get() == [22]


def test_files_that_cannot_be_read_at_the_start_are_an_error(path: Path) -> None:
    path.write_text("none")
    with pytest.raises(ConfigError, match="expected a number"):
        Watched([path], lambda: number_in(path))


def test_a_file_that_may_be_read_again_is_read_again(path: Path) -> None:
    def number_of_owner() -> list[int]:
        if not path.stat().st_mode & 0o400:  # root may read it all the same.
            raise ConfigError(f"{path}: cannot be read")
        return number_in(path)

    watched = Watched([path], number_of_owner)
    other = path.with_name("other")
    other.write_text("22")
    other.chmod(0o000)
    other.replace(path)
    assert watched.get() == [1]
    path.chmod(0o600)
    assert watched.get() == [22]
