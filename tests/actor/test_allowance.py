from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from actor.allowance import Allowance, check_names
from actor.client.join_answer import MAX_COLUMNS, MAX_ROW_BYTES
from common.config.actor_config import MAX_BATCH_ROWS, MAX_ENVS_PER_ACTOR, MAX_SPOOL_BYTES, MAX_WINDOW, ActorConfig
from common.config.run_config import load_config
from common.errors import PluginError
from common.settings import validate
from common.wire.trust import Trust
from tests.conftest import ROOT

SHIPPED_CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
CARTPOLE = {"target": "gymnasium:make", "params": {"id": "CartPole-v1"}}
DQN = {"target": "common.agents.dqn:DQN"}
LIMIT = "gymnasium.wrappers:TimeLimit"
TELEOPERATE = "crossborder.people.teleoperation:Teleoperate"
OWN_PARTS = """
from subprocess import Popen, getoutput
import gymnasium
from common.interfaces import Agent, RowMap
from common.process.child import Child
class Game(gymnasium.Env): pass
class Mind(Agent): pass
class Chop:
    def schema(self, spec): ...
    def reset(self): ...
    def process(self, step): ...
class NoProcessor: pass
class Mouse:
    def begin(self, obs, info): ...
    def read(self, obs, info): ...
    def close(self): ...
class Judge:
    def evaluate(self, agent): ...
class Scale(RowMap):
    def schema(self, rows): ...
    def map(self, rows): ...
def make(**params): raise AssertionError("called")
gymnasium.register("Own-v0", "mine.parts:Game")
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A user's package ``mine``, importable; forgotten afterwards."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").touch()
    (tmp_path / "mine" / "parts.py").write_text(OWN_PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
        del sys.modules[name]
    gymnasium.registry.pop("Own-v0", None)


def config(**changes: Any) -> ActorConfig:
    return validate(ActorConfig, {"env": CARTPOLE, "agent": DQN, **changes})


@pytest.mark.parametrize("path", SHIPPED_CONFIGS, ids=lambda path: path.stem)
def test_shipped_configurations_need_no_option(path: Path) -> None:
    Allowance(()).check(load_config(path).actor_part())


def test_the_page_states_the_bounds_of_what_an_actor_takes() -> None:
    page = " ".join((ROOT / "docs" / "SECURITY.md").read_text().split())
    page = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", page)  # Of links, the text alone.
    for bound in (
        f"{MAX_ENVS_PER_ACTOR} environments in one actor",
        f"{MAX_BATCH_ROWS:,} rows in a batch",
        f"{MAX_WINDOW:,} unacknowledged batches",
        f"{MAX_SPOOL_BYTES >> 30} GiB of spool",
        f"{MAX_COLUMNS} columns",
        f"{MAX_ROW_BYTES >> 20} MiB a row",
    ):
        assert bound in page


def test_names_are_checked_only_for_a_learner_on_another_host() -> None:
    own = config(agent={"target": "mine.parts:Mind"})
    check_names(own, Trust(), is_own_host=True)
    check_names(own, Trust(allow=("any",)), is_own_host=False)
    with pytest.raises(PluginError, match=r"--allow mine\.parts:Mind "):
        check_names(own, Trust(), is_own_host=False)


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize("entries", [("mine",), ("mine.parts",), ("mine.parts:Game", "mine.parts:Mind", "mine")])
def test_a_module_allows_the_classes_in_it_and_below(entries: tuple[str, ...]) -> None:
    changes = {part: {"target": f"mine.parts:{name}"} for part, name in (("env", "Game"), ("agent", "Mind"))}
    Allowance(entries).check(config(**changes, step_processor={"target": "mine.parts:Chop"}))


@pytest.mark.usefixtures("mine")
def test_a_function_is_allowed_by_its_whole_name_and_not_called() -> None:
    made = config(env={"target": "mine.parts:make"})
    Allowance(("mine.parts:make",)).check(made)
    with pytest.raises(PluginError, match=r"'mine\.parts:make' is no class.*--allow mine\.parts:make"):
        Allowance(("mine",)).check(made)


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": {"target": "mine.parts:Popen"}}, "env.target: expected a subclass of gymnasium.Env"),
        ({"env": {"target": "mine.parts:Child"}}, "env.target: expected a subclass of gymnasium.Env"),
        ({"env": {"target": "mine.parts:getoutput"}}, "is no class"),
        ({"agent": {"target": "mine.parts:Game"}}, "agent.target: expected a subclass of crossborder.Agent"),
        ({"step_processor": {"target": "mine.parts:NoProcessor"}}, "is no step processor: it has no schema, reset"),
        (
            {"agent": {**DQN, "params": {"network": {"target": "mine.parts:Popen"}}}},
            "agent.params.network.target: expected a subclass of torch.nn.Module",
        ),
        (
            {"agent": {**DQN, "params": {"frozen_encoders": {"wrist": {"target": "mine.parts:Popen"}}}}},
            "agent.params.frozen_encoders.wrist.target: expected a subclass of torch.nn.Module",
        ),
        ({"agent": {"target": "mine.parts:Mind", "params": {"hook": "mine.parts:make"}}}, r"agent\.params\.hook"),
        ({"env": {"target": "mine.parts:Game", "safe_stop": "mine.parts:make"}}, r"env\.safe_stop: 'mine\.parts:make'"),
    ],
)
def test_within_an_allowed_module_only_parts_of_the_right_kind_may_be_named(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(PluginError, match=message):
        Allowance(("mine",)).check(config(**changes))


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"env": {"target": "os:system", "params": {"command": "true"}}}, "env.target: 'os:system'"),
        ({"agent": {"target": "subprocess:getoutput"}}, "agent.target: 'subprocess:getoutput'"),
        ({"step_processor": {"target": "subprocess:run"}}, "step_processor.target: 'subprocess:run'"),
        (
            {"agent": {**DQN, "params": {"network": {"target": "os:system"}}}},
            "agent.params.network.target: 'os:system'",
        ),
        (
            {"agent": {**DQN, "params": {"frozen_encoders": {"wrist": {"target": "os:system"}}}}},
            "agent.params.frozen_encoders.wrist.target: 'os:system'",
        ),
        (
            {"agent": {**DQN, "params": {"network": [{"target": "os:system"}]}}},
            r"agent.params.network.0.target: 'os:system'",
        ),
        ({"env": {**CARTPOLE, "params": {"id": "this:Any-v0"}}}, "env.params.id: 'this:Any-v0'"),
        ({"env": {**CARTPOLE, "params": {"id": "CartPole-v1", "wrapper": "os:x"}}}, "env.params.wrapper: 'os:x'"),
        ({"env": {"target": "gymnasium:register"}}, "env.target: 'gymnasium:register'"),
        ({"env": {**CARTPOLE, "wrappers": [{"target": "os:system"}]}}, "env.wrappers.0.target: 'os:system'"),
        (
            {"env": {**CARTPOLE, "wrappers": [{"target": "gymnasium.wrappers:RecordVideo"}]}},
            "env.wrappers.0.target: 'gymnasium.wrappers:RecordVideo'",
        ),
        (
            {"env": {**CARTPOLE, "wrappers": [{"target": LIMIT, "params": {"env": "os:x"}}]}},
            "env.wrappers.0.params.env: 'os:x'",
        ),
        ({"env": {"target": "gymnasium:make_vec", "params": {"id": "this:Any-v0"}}}, "env.params.id: 'this:Any-v0'"),
        ({"env": {"target": "gymnasium.:make"}}, r"env.target: 'gymnasium\.:make'"),
        ({"env": {"target": "gymnasiumevil:make"}}, "env.target: 'gymnasiumevil:make'"),
        ({"agent": {"target": "gymnasium:make"}}, "agent.target: 'gymnasium:make'"),
    ],
)
def test_any_other_name_at_any_depth_is_refused_with_the_option_that_would_allow_it(
    changes: dict[str, Any], place: str
) -> None:
    with pytest.raises(PluginError, match=f"{place}; if you trust it, say --allow "):
        Allowance(()).check(config(**changes))
    assert "this" not in sys.modules, "nothing is imported before it is allowed"


def test_one_error_names_all_names_that_are_not_allowed_and_quotes_them_for_a_shell() -> None:
    changes = {"env": {"target": "a b:Game"}, "agent": {"target": "mind:$(id)"}}
    with pytest.raises(PluginError, match=r"--allow 'a b:Game' 'mind:\$\(id\)' \(or --allow any"):
        Allowance(()).check(config(**changes))


@pytest.mark.parametrize(
    "target",
    [
        "common.process.child:Child",
        "common.plugins.part_loading:load_part",
        "common.lanes.building:build_env",
        "actor.commands.actor_worker:main",
        "learner:x",
    ],
)
@pytest.mark.parametrize("entries", [(), ("gymnasium", "common", "actor", "learner"), ("common.process.child:Child",)])
def test_crossborders_internal_code_is_refused_even_if_a_user_allows_it(target: str, entries: tuple[str, ...]) -> None:
    with pytest.raises(PluginError, match="belongs to crossborder itself"):
        Allowance(entries).check(config(env={"target": target}))


@pytest.mark.parametrize("env_id", ["CartPole-v1", "CartPole", "HalfCheetah-v5"])
@pytest.mark.parametrize("make", ["gymnasium:make", "gymnasium:make_vec"])
def test_gymnasiums_own_environments_and_wrappers_need_no_option(env_id: str, make: str) -> None:
    wrappers = [{"target": LIMIT, "params": {"max_episode_steps": 5}}]
    Allowance(()).check(config(env={"target": make, "params": {"id": env_id}, "wrappers": wrappers}))


def test_the_environments_of_envpool_need_no_option() -> None:
    Allowance(()).check(config(env={"target": "common.envs.pool:make", "params": {"id": "Pong-v5", "num_envs": 8}}))


def test_games_of_pettingzoos_registry_need_no_option_and_functions_must_be_allowed_by_their_whole_names() -> None:
    def game(id: str) -> ActorConfig:
        return config(env={"target": "common.envs.pettingzoo:make", "params": {"id": id}})

    Allowance(()).check(game("classic/connect_four-v3"))
    for entries in ((), ("os",)):
        with pytest.raises(PluginError, match=r"env\.params\.id: 'os:system'.*--allow os:system"):
            Allowance(entries).check(game("os:system"))
    Allowance(("my_games:chase",)).check(game("my_games:chase"))


def test_the_program_of_a_game_must_be_allowed_with_all_its_arguments() -> None:
    def game(evaluates: bool = False, **params: Any) -> ActorConfig:
        eval_params = params if evaluates else {}
        return config(
            env={"target": "common.envs.godot:make", "params": {} if evaluates else params, "eval_params": eval_params}
        )

    Allowance(()).check(game(port=11009))
    chase, other = game(path="/games/chase"), game(path="/games/chase", arguments=["-e", "rm x"])
    Allowance(("/games/chase",)).check(chase)
    Allowance(("/games/chase",)).check(game(path="/games/chase", arguments=None))
    Allowance(("/games/chase -e 'rm x'",)).check(other)
    for refused, entries in ((chase, ()), (chase, ("games",)), (other, ("/games/chase", "/games/chase -e rm x"))):
        with pytest.raises(PluginError, match=r"not allowed: env\.params\.path: ./games/chase"):
            Allowance(entries).check(refused)
    Allowance(()).check(game(evaluates=True, path="/games/chase"))
    with pytest.raises(PluginError, match=r"env\.eval_params\.path"):
        Allowance(()).check(game(evaluates=True, path="/games/chase"), evaluates=True)
    both = {"params": {"path": "/games/chase"}, "eval_params": {"arguments": ["-e"]}}
    with pytest.raises(PluginError, match=r"env\.eval_params\.path: '/games/chase -e'"):
        Allowance(("/games/chase",)).check(config(env={"target": "common.envs.godot:make", **both}), evaluates=True)


@pytest.mark.parametrize(
    "id", ["mpe2.simple_spread_v3:os", "mpe2:env", "mpe2.a.b:env", "mpe2_mine.x:env", "xmpe2.x:env"]
)
def test_of_mpe2_only_the_functions_that_make_its_environments_need_no_option(id: str) -> None:
    game = {"target": "common.envs.pettingzoo:make", "params": {"id": "mpe2.simple_spread_v3:parallel_env"}}
    Allowance(()).check(config(env=game))
    with pytest.raises(PluginError, match=rf"env\.params\.id: '{id}'"):
        Allowance(()).check(config(env={**game, "params": {"id": id}}))
    with pytest.raises(PluginError, match=r"not allowed: env\.params\.id"):
        Allowance(()).check(config(env={"target": "gymnasium:make", "params": {"id": "mpe2.simple_v3:env"}}))


def test_scripts_that_play_on_seats_must_be_allowed_by_their_whole_names() -> None:
    players = [{"player_1": "random"}, {"player_2": ["random", "os:system"]}]
    named = {"target": "common.envs.pettingzoo:make", "params": {"id": "classic/tictactoe-v3", "players": players}}
    with pytest.raises(PluginError, match=r"env\.params\.players\.1\.player_2\.1: 'os:system'"):
        Allowance(("os",)).check(config(env=named))
    Allowance(("os:system",)).check(config(env=named))


@pytest.mark.usefixtures("mine")
def test_an_evaluator_is_checked_only_where_the_actor_evaluates() -> None:
    evaluator = {"target": "mine.parts:Judge", "params": {"reference": "os:x"}}
    own = config(evaluator=evaluator, env={**CARTPOLE, "eval_params": {"hook": "os:y"}})
    Allowance(()).check(own)
    with pytest.raises(
        PluginError, match=r"evaluator\.target: 'mine\.parts:Judge'.*eval_params\.hook.*params\.reference"
    ):
        Allowance(()).check(own, evaluates=True)
    Allowance(("mine.parts:Judge", "os:x", "os:y")).check(own, evaluates=True)
    with pytest.raises(PluginError, match="is no evaluator: it has no evaluate"):
        Allowance(("mine",)).check(config(evaluator={"target": "mine.parts:Mind"}), evaluates=True)


@pytest.mark.parametrize("env_id", ["Theirs-v0", "theirs.envs:Theirs-v0"])
def test_an_evaluators_own_environment_is_checked_only_where_the_actor_evaluates(env_id: str) -> None:
    own = config(env={**CARTPOLE, "eval_params": {"id": env_id}})
    Allowance(()).check(own)
    with pytest.raises(PluginError, match=rf"env\.eval_params\.id: .*{env_id}"):
        Allowance(()).check(own, evaluates=True)


def test_a_function_that_gives_the_spaces_is_checked_only_where_the_actor_evaluates() -> None:
    own = config(env={**CARTPOLE, "spaces": "mine.parts:spaces"})
    Allowance(()).check(own)
    with pytest.raises(PluginError, match=r"env\.spaces: 'mine\.parts:spaces'.*--allow mine\.parts:spaces"):
        Allowance(("mine",)).check(own, evaluates=True)
    Allowance(("mine.parts:spaces",)).check(own, evaluates=True)


def teleoperated(device: Any) -> dict[str, Any]:
    """An environment in which a person takes over by a device."""
    return {**CARTPOLE, "wrappers": [{"target": TELEOPERATE, "params": {"device": device}}]}


@pytest.mark.parametrize("kind", ["keyboard:Keyboard", "gamepad:Gamepad"])
def test_the_devices_that_come_with_crossborder_need_no_option(kind: str) -> None:
    Allowance(()).check(config(env=teleoperated({"target": f"crossborder.people.{kind}"})))


@pytest.mark.usefixtures("mine")
def test_a_users_own_device_is_allowed_by_its_module_and_must_be_a_device() -> None:
    own = config(env=teleoperated({"target": "mine.parts:Mouse"}))
    with pytest.raises(
        PluginError, match=r"env\.wrappers\.0\.params\.device\.target: 'mine\.parts:Mouse'.*--allow mine"
    ):
        Allowance(()).check(own)
    assert "mine.parts" not in sys.modules
    Allowance(("mine",)).check(own)
    for other in ("Judge", "Scale"):
        with pytest.raises(PluginError, match=f"'mine.parts:{other}' is no device: it has no begin, read, close"):
            Allowance(("mine",)).check(config(env=teleoperated({"target": f"mine.parts:{other}"})))


@pytest.mark.parametrize(
    "device",
    [
        {"target": "os:system"},
        {"target": "common.process.child:Child"},
        {"target": ["os:system"]},
        {"target": "crossborder.people.keyboard:Keyboard", "params": {"hook": "os:system"}},
        "os:system",
    ],
)
def test_a_device_cannot_name_code_that_is_not_allowed(device: Any) -> None:
    with pytest.raises(PluginError, match=r"env\.wrappers\.0\.params\.device.*: '(os|common\.process)"):
        Allowance(()).check(config(env=teleoperated(device)))


@pytest.mark.usefixtures("mine")
def test_a_map_of_rows_is_a_step_processor() -> None:
    Allowance(("mine",)).check(config(step_processor={"target": "mine.parts:Scale"}))


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({**CARTPOLE, "params": {"id": "NoSuch-v1"}}, "gymnasium has no environment 'NoSuch-v1' on this host"),
        ({**CARTPOLE, "params": {"id": {"entry_point": "x"}}}, "expected the id of an environment as text"),
        ({"target": "common.envs.atari:make", "params": {"id": "CartPole-v1"}}, "expected an Atari game"),
    ],
)
def test_an_id_that_gymnasium_does_not_know_is_refused(env: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        Allowance(()).check(config(env=env))


@pytest.mark.usefixtures("mine")
def test_an_environment_that_another_package_registered_needs_that_package_allowed() -> None:
    own = config(env={**CARTPOLE, "params": {"id": "mine.parts:Own-v0"}})
    with pytest.raises(PluginError, match=r"--allow mine\.parts:Own-v0"):
        Allowance(()).check(own)
    assert "mine.parts" not in sys.modules
    Allowance(("mine.parts:Own-v0",)).check(own)
    Allowance(("mine",)).check(own)
    with pytest.raises(PluginError, match=r"'Own-v0' is an environment of mine\.parts.*--allow mine\.parts"):
        Allowance(()).check(config(env={**CARTPOLE, "params": {"id": "Own-v0"}}))
    Allowance(("mine",)).check(config(env={**CARTPOLE, "params": {"id": "Own-v0"}}))
