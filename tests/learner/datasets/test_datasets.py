from __future__ import annotations

import sys

import pytest

from common.errors import PluginError
from learner.datasets.datasets import open_dataset


def test_a_missing_extra_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)  # As Python has it where an import is not to be had.
    monkeypatch.delitem(sys.modules, "learner.datasets.minari_episodes", raising=False)
    with (
        pytest.raises(PluginError, match=r"dataset minari:any-v0: .*minari.*; pip install 'crossborder\[offline\]'"),
        open_dataset("minari:any-v0"),
    ):
        pass
