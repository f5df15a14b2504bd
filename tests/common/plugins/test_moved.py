from __future__ import annotations

import pytest

from common.plugins.importing import load
from common.plugins.moved import MOVED, present_place


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_a_part_is_found_under_the_name_that_earlier_releases_gave_it(old: str, new: str) -> None:
    assert load(old) is load(new)


def test_the_new_name_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    present_place.cache_clear()
    for _ in range(2):
        assert present_place("learner.mlflow:MlflowRecorder") == "learner.records.mlflow:MlflowRecorder"
    assert [record.getMessage() for record in caplog.records] == [
        "learner.mlflow:MlflowRecorder has moved: write learner.records.mlflow:MlflowRecorder in the configuration"
    ]
