from __future__ import annotations

import sys

import pytest

from common.errors import PluginError
from common.lanes.building import build_env
from tests.common.lanes.test_building import named


def test_a_missing_envpool_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(PluginError, match=r"pip install 'crossborder\[envpool\]'"):
        build_env(named("common.envs.pool:make", {"id": "CartPole-v1", "num_envs": 2}))
