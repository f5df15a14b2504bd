"""The page for users of other libraries names settings that there are: ours by the models, theirs as recorded.

``peers.json`` has the names that the other libraries had in the versions it names. They are not installed for tests.
"""

from __future__ import annotations

import json
import re

import pytest
import yaml

from common.agents.dqn import DQN
from common.agents.recurrent_ppo import RecurrentPPO
from common.agents.sac import SAC
from common.agents.td3 import TD3
from common.config.run_config import RunConfig
from common.settings import Settings, models_in, validate
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "from-other-libraries.md").read_text()
PEERS = json.loads((ROOT / "tests" / "peers.json").read_text())
CONFIGS: dict[str, type[Settings]] = {
    "PPO": RecurrentPPO.Config,  # It has all settings of PPO.
    "DQN": DQN.Config,
    "SAC": SAC.Config,
    "TD3": TD3.Config,
}
SECTIONS = ["Every agent", *CONFIGS]
ALGORITHMS = {*CONFIGS}


def cells(section: str, column: int) -> list[str]:
    """The names between backticks in one column of a section's table."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")][1:]
    assert rows
    assert all(len(row) == 5 for row in rows)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row[column])]


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize(("column", "library"), [(0, "stable-baselines3"), (1, "CleanRL"), (2, "RLlib")])
def test_a_name_of_theirs_is_one_that_the_library_has(section: str, column: int, library: str) -> None:
    recorded = {key: names for key, names in PEERS[library].items() if isinstance(names, list)}
    others = ALGORITHMS - {section} if section in ALGORITHMS else set()
    known = {name for key, names in recorded.items() if key not in others for name in names}
    assert set(cells(section, column)) - known == set()


def has(model: type[Settings], path: list[str]) -> bool:
    """Whether a model has a setting by its path; parameters of a part may be anything."""
    field = model.model_fields.get(path[0])
    if field is None:
        return False
    if len(path) == 1 or path[0] == "params":
        return True
    return any(has(inner, path[1:]) for inner in models_in(field.annotation))


@pytest.mark.parametrize("section", SECTIONS)
def test_a_name_of_ours_is_a_setting_of_the_agents_of_the_section(section: str) -> None:
    agents = [CONFIGS[section]] if section in CONFIGS else [*CONFIGS.values()]
    for key in cells(section, 3):
        first, *path = key.split(".")
        if [first, *path[:1]] == ["agent", "params"]:
            assert all(has(agent, path[1:]) for agent in agents), key
        elif ":" not in key:
            assert has(RunConfig, [first, *path]), key


def test_the_example_is_a_configuration() -> None:
    additions, example = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
    config = validate(RunConfig, {**example, **additions, "trainer": {**example["trainer"], **additions["trainer"]}})
    config.check()
    ratio = config.replay.samples_per_insert
    assert ratio is not None
    assert (
        config.trainer.max_opts == (20_000 - config.trainer.warmup_period) * ratio / config.agent.params["batch_size"]
    )
