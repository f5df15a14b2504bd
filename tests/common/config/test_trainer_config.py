from __future__ import annotations

import pytest

from common.config.trainer_config import TrainerConfig
from common.errors import ConfigError
from common.settings import validate


def test_max_train_steps_is_another_name_for_max_opts() -> None:
    assert validate(TrainerConfig, {"max_train_steps": 77}).max_opts == 77


@pytest.mark.parametrize("never", [0, None])
def test_an_interval_of_zero_or_null_means_never(never: int | None) -> None:
    assert not validate(TrainerConfig, {"max_opts": 1, "eval_interval": never}).eval_interval


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^precision: .*'float32', 'rounded_products' or 'bfloat16', found 'float16'$"
    ):
        validate(TrainerConfig, {"max_opts": 1, "precision": "float16"})
