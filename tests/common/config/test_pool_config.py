from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.config.pool_config import has_pool
from common.errors import ConfigError
from tests.conftest import counting_config


@pytest.mark.parametrize(
    ("players", "expected"),
    [
        ("pool", True),
        ({"a": "pool"}, True),
        ([{"a": "random"}, {"b": ["random", "pool"]}], True),
        ("random", False),
        ({"a": {"saved": "best"}}, False),
        ((), False),
    ],
    ids=str,
)
def test_whether_earlier_models_play(players: Any, expected: bool) -> None:
    assert has_pool({"id": "pool", "players": players}) is expected


def test_an_evaluation_needs_other_opponents(tmp_path: Path) -> None:
    env = {"target": "pettingzoo", "params": {"id": "classic/tictactoe-v3", "players": "pool"}}
    with pytest.raises(
        ConfigError, match=r"pool plays in training only: name the opponents .* env\.eval_params\.players"
    ):
        counting_config(tmp_path, env=env, trainer={"eval_interval": 10})
    counting_config(tmp_path, env={**env, "eval_params": {"players": "random"}}, trainer={"eval_interval": 10})
    counting_config(tmp_path, env=env, trainer={"eval_interval": 0})


def test_players_of_the_pool_do_not_see_through_wrappers(tmp_path: Path) -> None:
    env = {"target": "pettingzoo", "params": {"players": "pool"}, "wrappers": [{"target": "PythonActions"}]}
    with pytest.raises(ConfigError, match=r"env\.wrappers: expected none with players of the pool"):
        counting_config(tmp_path, env=env)
