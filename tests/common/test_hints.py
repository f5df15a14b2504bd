from __future__ import annotations

from pathlib import Path

import pytest

from common.hints import IN_OTHER_LIBRARIES, nearest, nearest_path
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("capcity", {"capacity", "seed"}, " (did you mean 'capacity'?)"),
        ("dqn", {"DQN", "IQN"}, " (did you mean 'DQN'?)"),
        ("learning_rate", {"lr", "units"}, " (did you mean 'lr'?)"),
        ("policy_kwargs", {"policy_delay"}, " (here it is agent.params.units or agent.params.network)"),
        ("zzz", {"b", "a"}, " (known: a, b)"),
        ("zzz", set(), " (known: none)"),
        ("camera", {""}, " (known: none)"),
        ("camra", {"", "camera"}, " (did you mean 'camera'?)"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest_or_all_names(name: str, known: set[str], hint: str) -> None:
    assert nearest(name, known) == hint


def test_names_of_other_libraries_are_those_of_the_page_about_them() -> None:
    page = (ROOT / "docs" / "from-other-libraries.md").read_text()
    for theirs, ours in IN_OTHER_LIBRARIES.items():
        rows = [row for row in page.splitlines() if f"`{theirs}`" in row.partition(" here ")[0]]
        assert any(f"`{one}`" in row for row in rows for one in ours.split(" or ")), (theirs, rows)


def test_a_missing_file_is_answered_with_the_nearest_beside_it(tmp_path: Path) -> None:
    (tmp_path / "cartpole.yaml").touch()
    assert nearest_path(tmp_path / "cartpol.yaml") == f" (did you mean '{tmp_path}/cartpole.yaml'?)"
    assert nearest_path(tmp_path / "cartpole.yaml") == nearest_path(tmp_path / "zzz") == ""


def test_a_missing_directory_is_answered_with_the_nearest_where_it_is_missing(tmp_path: Path) -> None:
    (tmp_path / "cartpole-1" / "best").mkdir(parents=True)
    assert nearest_path(tmp_path / "cartpole-2" / "best") == f" (did you mean '{tmp_path}/cartpole-1'?)"
    assert nearest_path(tmp_path / "cartpole-1" / "bset") == f" (did you mean '{tmp_path}/cartpole-1/best'?)"


def test_a_relative_path_without_a_neighbour_is_answered_with_the_present_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert nearest_path(Path("configs/cartpole.yaml")) == nearest_path(Path("zzz")) == f" (in {tmp_path})"


def test_there_is_no_hint_at_a_directory_that_may_not_be_read(tmp_path: Path) -> None:
    assert nearest_path(tmp_path / ("x" * 300)) == ""
