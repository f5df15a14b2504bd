from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.config.actor_config import ActorConfig
from common.config.nested import parse_yaml, read_yaml
from common.depth import ANY_NUMBER, MAX_DEPTH, parse_json
from common.errors import CrossborderError
from learner.datasets.lerobot_episodes import read_info
from learner.replay.memory import Layout
from learner.storage.checkpoint import Checkpoints, load_params
from learner.storage.rundir import read_identity
from tests.learner.storage.test_checkpoint import CONFIG, dqn

DEEP = "[" * 100_000


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("parse", [parse_json, parse_yaml])
def test_depth_is_bounded(parse: Callable[[str], Any]) -> None:
    assert parse(nested(MAX_DEPTH)) == json.loads(nested(MAX_DEPTH))
    for text in (nested(MAX_DEPTH + 1), nested(5_000), DEEP):
        with pytest.raises(ValueError, match=f"at most {MAX_DEPTH} lists and mappings within each other"):
            parse(text)


@pytest.mark.parametrize(
    "number", ["NaN", "-Infinity", "1e400", str(2**64), str(-(2**63) - 1), pytest.param("9" * 400, id="400 digits")]
)
def test_numbers_that_no_machine_word_holds_are_refused_unless_they_are_asked_for(number: str) -> None:
    with pytest.raises(ValueError, match="expected finite numbers of at most 64 bits, found "):
        parse_json(f"[{number}]")
    assert len(parse_json(f"[{number}]", **ANY_NUMBER)) == 1
    assert parse_json("[1e300, -9223372036854775808, 18446744073709551615]") == [1e300, -(2**63), 2**64 - 1]


def test_values_that_hold_themselves_are_too_deep_and_shared_ones_are_not() -> None:
    with pytest.raises(ValueError, match="within each other"):
        parse_yaml("a: &a [*a]")
    bomb = "".join(f"k{n + 1}: &k{n + 1} [{', '.join([f'*k{n}'] * 10)}]\n" for n in range(20))
    assert len(parse_yaml(f"k0: &k0 [1]\n{bomb}")) == 21


def read_policy(path: Path) -> object:
    text = path.read_text()
    Checkpoints(path.parent, CONFIG, "run").save("best", dqn(seed=1), opt_steps=1)
    (path.parent / "best" / "meta.json").write_text(text)
    return load_params(path.parent / "best")


READERS: dict[str, Callable[[Path], object]] = {
    "a.yaml": read_yaml,
    "layout.json": lambda path: Layout.read(path.parent),
    "run.json": lambda path: read_identity(path.parent),
    "meta.json": read_policy,
    "info.json": read_info,
    "config.json": lambda path: ActorConfig.from_json(path.read_text(), "learner"),
}


@pytest.mark.parametrize("name", READERS)
def test_files_that_are_nested_too_deep_are_refused_with_the_reason(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(DEEP)
    with pytest.raises(CrossborderError, match="lists and mappings within each other"):
        READERS[name](tmp_path / name)
