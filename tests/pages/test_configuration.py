"""The page of settings says of each what the models do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from common.config.run_config import load_config
from common.plugins.shipped import SHIPPED
from common.settings import Settings
from pages.configuration import AGENTS, page
from tests.conftest import ROOT

FREE = ("params", "eval_params", "overrides")
"""Mappings in which a user chooses the keys."""


@cache
def whole_page() -> str:
    return page()


def keys_of(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The keys of what is no free mapping, as a user writes them."""
    for name, value in values.items():
        yield prefix + name
        if isinstance(value, dict) and name not in FREE:
            yield from keys_of(value, f"{prefix}{name}.")


def test_every_key_of_a_run_is_there() -> None:
    config = load_config(ROOT / "configs" / "cartpole.yaml", ["replay.prioritized={}"])
    sections = {name for name, value in config if isinstance(value, Settings | tuple)}
    for key in set(keys_of(config.model_dump())) - sections:
        assert f"\n| `{key}` |" in whole_page()
    for section in sections:
        assert f"\n## `{section}`\n" in whole_page()


def test_every_shipped_agent_has_a_section() -> None:
    assert {model.__name__.removesuffix("Config") for model in AGENTS} == {*SHIPPED["agent"]}


@pytest.mark.parametrize("model", AGENTS, ids=lambda model: model.__name__)
def test_every_parameter_of_an_agent_is_there_with_its_sentence(model: type[Settings]) -> None:
    (section,) = [
        part for part in whole_page().split("\n### ") if part.startswith(f"`{model.__name__.removesuffix('Config')}`")
    ]
    for name, field in model.model_fields.items():
        (row,) = [line for line in section.splitlines() if line.startswith(f"| `agent.params.{name}` |")]
        assert str(field.description) in row


@pytest.mark.parametrize(
    "row",
    [
        "| `trainer.max_opts` | int > 0 | required | The number of opt steps after which training ends. Also "
        "`max_train_steps`.",
        '| `trainer.precision` | `float32` or `rounded_products` or `bfloat16` | `"float32"` |',
        '| `metrics.listen` | string or null | `"127.0.0.1:9464"` |',
        "| `step_processor.target` | string | required |",
        "| `replay.sources.NAME.dataset` | string or null | `null` |",
        "| `replay.view.params.length` | int | required | The number of steps L, at least 1.",
        "| `server.tls.key` | path | required |",
        "| `recorders[].target` | string | required |",
        "| `agent.params.units` | list of int > 0 | `[256, 256]` |",
    ],
)
def test_types_bounds_defaults_and_other_names_are_shown(row: str) -> None:
    assert f"\n{row}" in whole_page()


def test_shipped_parts_have_their_short_names_in_the_rows_of_settings() -> None:
    settings, _, names = whole_page().partition("\n## Short names\n")
    inside = re.compile(r"\b(common|learner|actor|crossborder)\.[a-z_.]+")
    assert [line for line in settings.splitlines() if inside.search(line)] == [
        "[short name](#short-names) too: `DQN` is `common.agents.dqn:DQN`. What a run records has the whole name."
    ]
    assert inside.search(names)
