from __future__ import annotations

from typing import Any

import pytest

from common.agents.awac import AWACConfig
from common.agents.discrete_sac import DiscreteSACConfig
from common.agents.impala import IMPALAConfig
from common.agents.iql import IQLConfig
from common.agents.recurrent_sac import RecurrentSACConfig
from common.agents.sac import SACConfig
from common.errors import ConfigError
from common.settings import Settings, validate

CONSTANT = {"kind": "constant", "warmup": 4}


@pytest.mark.parametrize(
    ("model", "given", "without_effect"),
    [
        (SACConfig, {"auto_ent_coef": False}, {"target_entropy": 0.0}),
        (SACConfig, {"auto_ent_coef": False}, {"ent_coef_lr": 0.1}),
        (RecurrentSACConfig, {"auto_ent_coef": False}, {"target_entropy": -1.0}),
        (DiscreteSACConfig, {"auto_ent_coef": False}, {"target_entropy": 0.98}),
        (IMPALAConfig, {"correction": "none"}, {"rho_bar": 1.0}),
        (IMPALAConfig, {"correction": "none"}, {"c_bar": 2.0}),
        (AWACConfig, {"adv_softmax": True}, {"exp_adv_max": 100.0}),
        (IQLConfig, {"adv_softmax": True}, {"exp_adv_max": 5.0}),
    ],
)
def test_a_setting_that_has_no_effect_beside_another_is_refused(
    model: type[Settings], given: dict[str, Any], without_effect: dict[str, Any]
) -> None:
    validate(model, given)
    validate(model, without_effect)
    (key,), (other,) = without_effect, given
    with pytest.raises(ConfigError, match=rf"^agent\.params: give {other}: \w+ or {key}, not both: "):
        validate(model, given | without_effect, "agent.params")


@pytest.mark.parametrize("without_effect", [{"steps": 10}, {"final": 0.5}])
def test_a_constant_learning_rate_has_no_fall(without_effect: dict[str, Any]) -> None:
    values = {"optimizer": {"kind": "adam", "schedule": CONSTANT}}
    validate(SACConfig, values)
    values["optimizer"]["schedule"] = CONSTANT | without_effect
    (key,) = without_effect
    with pytest.raises(ConfigError, match=rf"schedule: give kind: constant or {key}, not both: a constant rate"):
        validate(SACConfig, values, "agent.params")


def test_a_target_that_is_null_is_not_given() -> None:
    """A command line takes a value of a file back by ``--set agent.params.target_entropy=null``."""
    assert validate(SACConfig, {"auto_ent_coef": False, "target_entropy": None}).target_entropy is None
