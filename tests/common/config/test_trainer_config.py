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


def test_torch_gets_no_more_threads_than_cores() -> None:
    values = {"max_opts": 1, "torch_threads": 2}
    assert validate(TrainerConfig, {**values, "cores": "0-1"}).cores == (0, 1)
    with pytest.raises(ConfigError, match=r"^trainer\.torch_threads: expected at most 1, .*, found 2$"):
        validate(TrainerConfig, {**values, "cores": 1})


def test_more_threads_than_any_computer_has_cores_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^torch_threads: expected .* 1024, found 1025$"):
        validate(TrainerConfig, {"max_opts": 1, "torch_threads": 1025})


def test_a_list_of_cores_is_checked_and_dumped_as_it_is_written() -> None:
    config = validate(TrainerConfig, {"max_opts": 1, "cores": "3,0-1"})
    assert config.model_dump(mode="json")["cores"] == "0-1,3"
    with pytest.raises(ConfigError, match=r"^cores: expected a list of cores such as 0-3,8, found '4-3'$"):
        validate(TrainerConfig, {"max_opts": 1, "cores": "4-3"})
