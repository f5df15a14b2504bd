from __future__ import annotations

import json
import math
from typing import Any

import pytest

from common.config.actor_config import ActorConfig
from common.errors import ConfigError
from common.settings import validate

MINIMAL: dict[str, Any] = {"env": {"target": "a:b"}, "agent": {"target": "c:d"}}


def test_infinities_and_texts_survive_the_wire() -> None:
    params = {"units": [1, 2], "deep": {"x": None}, "limits": [-math.inf, math.inf], "text": 'an "Infinity" of \\"'}
    text = validate(ActorConfig, MINIMAL | {"agent": {"target": "c:d", "params": params}}).to_json()
    json.loads(text, parse_constant=pytest.fail)  # A strict parser reads it: it has no number that JSON does not have.
    assert '"limits":["-Infinity","Infinity"]' in text
    for each in (text, text.replace('"-Infinity"', "-1e999").replace('"Infinity"]', "1e999]")):
        assert ActorConfig.from_json(each, "config").agent.params == params


@pytest.mark.parametrize(
    ("section", "key", "value"), [("push", "n_buffer", 0), ("push", "window", 1 << 17), ("push", "spool_bytes", 0)]
)
def test_a_value_beyond_the_limits_for_actors_is_refused(section: str, key: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"^{section}\.{key}: .*, found {value}$"):
        validate(ActorConfig, MINIMAL | {section: {key: value}})
