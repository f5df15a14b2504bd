from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import grpc
import pytest
import yaml
from pydantic import ValidationError

from actor.client import join_answer
from common.agents.dqn import DQNConfig
from common.agents.exploring import EpsilonGreedy, Softmax
from common.agents.sac import SACConfig
from common.agents.td3 import TD3Config
from common.config.actor_config import ActorConfig
from common.config.replay_config import PrioritizedConfig
from common.config.run_config import (
    FREE_PORTS,
    MAX_SEED,
    ExplorationConfig,
    RunConfig,
    StorageConfig,
    dump_config,
    load_config,
)
from common.config.server_config import MAX_GRPC_SECONDS, MESSAGE_BYTES, ServerConfig
from common.errors import ConfigError, PluginError
from common.plugins.part_config import PluginConfig
from common.settings import Settings, validate
from learner.ingest.server_options import server_options
from tests.conftest import ROOT

MINIMAL: dict[str, Any] = {
    "env": {"target": "tests.parts:CountingEnv"},
    "agent": {"target": "common.agents.dqn:DQN"},
    "trainer": {"max_opts": 10},
}
Write = Callable[..., Path]


def build(**changes: Any) -> RunConfig:
    return validate(RunConfig, MINIMAL | changes)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a run's YAML file."""

    def _write(**changes: Any) -> Path:
        path = tmp_path / "cart-pole.yaml"
        path.write_text(yaml.safe_dump(MINIMAL | changes))
        return path

    return _write


def settings_in(annotation: Any) -> Iterator[type[Settings]]:
    """Every settings model that an annotation names, and theirs."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        yield annotation
        for field in annotation.model_fields.values():
            yield from settings_in(field.annotation)
    for inner in get_args(annotation):
        yield from settings_in(inner)


ROOTS: list[type[Settings]] = [RunConfig, DQNConfig, SACConfig, TD3Config]
ALL_MODELS: list[type[Settings]] = list(dict.fromkeys(model for root in ROOTS for model in settings_in(root)))
DESCRIPTIONS = {
    f"{model.__name__}.{name}": field.description or ""
    for model in ALL_MODELS
    for name, field in model.model_fields.items()
}


def test_all_sections_are_walked() -> None:
    assert {*ROOTS, PluginConfig, ExplorationConfig, EpsilonGreedy, Softmax, PrioritizedConfig} < set(ALL_MODELS)
    assert set(ActorConfig.model_fields) < set(RunConfig.model_fields)


def test_every_field_is_described_by_a_sentence_that_ends_with_a_full_stop() -> None:
    assert [name for name, told in DESCRIPTIONS.items() if not (told.strip(" .") and told.endswith("."))] == []


@pytest.mark.parametrize(
    "path", sorted([*ROOT.glob("configs/*.yaml"), *ROOT.glob("examples/*.yaml")]), ids=lambda path: path.name
)
def test_every_configuration_that_is_shipped_is_good(path: Path) -> None:
    config = load_config(path)
    config.check()
    assert config.name == path.stem


# Values.


def test_an_unknown_key_names_the_nearest(write: Write) -> None:
    with pytest.raises(ConfigError, match=r"^replay\.capasity: unknown key \(did you mean 'capacity'\?\)$"):
        load_config(write(replay={"capasity": 3}))


def test_a_missing_value_is_asked_for_by_name() -> None:
    with pytest.raises(ConfigError) as caught:
        validate(RunConfig, {"trainer": {}})
    assert set(str(caught.value).splitlines()) == {
        f"{place}: expected a value, found none" for place in ("env", "agent", "trainer.max_opts")
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"trainer": {"max_opts": 1, "warmup_period": 11}, "replay": {"capacity": 10}},
            r"trainer\.warmup_period \(11\) is above replay\.capacity \(10\): training would never start",
        ),
        (
            {"trainer": {"max_opts": 1, "target_score": 9.0, "eval_interval": 0}},
            r"trainer\.target_score needs trainer\.eval_interval",
        ),
        ({"metrics": {"encrypted": True}}, r"metrics\.encrypted needs server\.tls, the certificate and key"),
        ({"push": {"initial_priorities": True}}, r"push\.initial_priorities needs replay\.prioritized"),
        ({"replay": {"prioritized": {"alpha": 1.1}}}, r"replay\.prioritized\.alpha: .*less than or equal to 1, found"),
        ({"replay": {"prioritized": {"beta": 1}}}, r"replay\.prioritized\.beta: unknown key \(did you mean 'beta_0'"),
        (
            {"server": {"max_actors": 2}, "overrides": {1: {}, 2: {}}},
            r"overrides: expected ids below server\.max_actors \(2\), found \[2\]",
        ),
        (
            {"trainer": {"max_opts": 1, "warmup_period": 1}, "replay": {"capacity": 21}, "push": {"n_buffer": 11}},
            r"push\.n_buffer: expected at most 10, half of replay\.capacity \(21\), found 11",
        ),
    ],
)
def test_values_that_do_not_go_together_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(**changes)


def test_values_at_the_limits_of_one_another_are_accepted() -> None:
    trainer = {"max_opts": 1, "warmup_period": 10, "target_score": 9.0, "eval_interval": 1}
    config = build(trainer=trainer, replay={"capacity": 10}, push={"n_buffer": 5})
    assert config.trainer.warmup_period == config.replay.capacity == 2 * config.push.n_buffer


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("trainer", "eval_interval", -1),
        ("replay", "capacity", 0),
        ("replay", "samples_per_insert", 0),
        ("push", "flush_seconds", 0),
        ("server", "max_actors", 4097),
        ("metrics", "listen", 9464),
        ("push", "flush_seconds", math.inf),
        ("server", "lost_seconds", 1.0),
        ("server", "lost_seconds", 3e6),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_place(section: str, key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"^{section}\.{key}: .*, found {value}$"):
        build(**{section: {**MINIMAL.get(section, {}), key: value}})


@pytest.mark.parametrize("listen", ["127.0.0.1", "127.0.0.1:65535"])
def test_metrics_need_an_address_and_a_next_port(listen: str) -> None:
    with pytest.raises(ConfigError, match=rf"^metrics\.listen: .*expected .*, found '{listen}'$"):
        build(metrics={"listen": listen})


def test_the_largest_limits_fit_the_options_of_grpc() -> None:
    config = build(server={"max_actors": 4096, "max_address_actors": 4096, "lost_seconds": MAX_GRPC_SECONDS}).server
    with ThreadPoolExecutor(1) as pool:
        grpc.server(pool, options=server_options(config)).stop(None)  # One more second would raise OverflowError.


def test_a_setting_that_is_gone_may_be_named_with_its_former_default() -> None:
    gone = {
        "evaluator": {"max_envs": 32, "finish_seconds": 60.0, "seed": 1000},
        "push": {"spool_seconds": None},
        "trainer": {"max_opts": 1, "opt_interval": 1, "keep_checkpoints": 3, "model_deltas": 0},
        "replay": {"staleness": None},
        "server": {
            "limits": {"max_calls": None, "max_admin_calls": 16},
            "max_rows": 65_536,
            "max_message_bytes": 16 << 20,
            "clip_nonfinite": {},
        },
        "metrics": {"per_actor": None, "host": "127.0.0.1", "trainer_port": 0, "ingest_port": 9465, "tls": None},
        "pool": {"power": 1.0, "window": 3},
        "exploration": {"base": 0.05, "alpha": 0.0, "rungs": 1},
        "env": {**MINIMAL["env"], "float64": False},
        "agent_overrides": {},
        "env_overrides": {},
    }
    assert build(**gone) == build(trainer={"max_opts": 1})


@pytest.mark.parametrize(
    "gone",
    [
        {"push": {"spool_seconds": 30.0}},
        {"server": {"limits": {"max_calls": 2}}},
        {"trainer": {"max_opts": 1, "opt_interval": 4}},
        {"replay": {"prioritized": {"beta_final": 0.9}}},
        {"replay": {"staleness": {"half_age": 2000}}},
        {"pool": {"draw": "losses", "power": 2}},
    ],
    ids=str,
)
def test_a_setting_that_is_gone_is_an_unknown_key_with_another_value(gone: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r": unknown key \((did you mean|known: )"):
        build(**gone)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"metrics": {"listen": "here"}}, "metrics.listen: expected HOST:PORT or [IPv6]:PORT, found 'here'"),
        ({"storage": {"mirror": "/mnt/x"}}, "storage.mirror: expected a URL, such as s3://bucket/run or file:///"),
        ({"run_dir": 3}, "run_dir: expected a path, found 3"),
        (
            {"env": {"target": "a:b", "timeout_seconds": 1e11}},
            "env.timeout_seconds: expected a number less than or equal to 100000000, found 100000000000.0",
        ),
    ],
)
def test_a_value_of_a_wrong_form_is_named_in_plain_words(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match="^" + re.escape(problem)):
        build(**changes)


@pytest.mark.parametrize(
    ("gone", "problem"),
    [
        (
            {"exploration": {"base": 0.4, "alpha": 0.0, "rungs": 1}},
            "exploration.base: unknown key (write the epsilon of each actor as exploration.epsilons, a list)",
        ),
        (
            {"server": {"max_message_bytes": 1 << 20}},
            "server.max_message_bytes: unknown key (remove it: messages have room for a batch of push.n_buffer rows)",
        ),
        ({"metrics": {"host": "0.0.0.0"}}, "metrics.host: unknown key (write metrics.listen: HOST:PORT)"),
        ({"metrics": {"trainer_port": None}}, "metrics.trainer_port: unknown key (write metrics.listen: HOST:PORT)"),
        (
            {"metrics": {"tls": {"certificate": "a", "key": "b"}}},
            "metrics.tls: unknown key (write metrics.encrypted: true, which takes the files of server.tls)",
        ),
        (
            {"pool": {"window": 4}},
            "pool.window: unknown key (write the number of newest models as pool.size, and pool.draw: uniform)",
        ),
        (
            {"env": {"target": "a:b", "float64": True}},
            "env.float64: unknown key (remove it, and begin another run: float64 is recorded as float32)",
        ),
        (
            {"server": {"clip_nonfinite": {"reward": 5.0}, "out_of_bounds": {}}},
            "server.clip_nonfinite: unknown key (write its numbers as server.unusual_values)",
        ),
        (
            {"server": {"clip_nonfinite": {}, "out_of_bounds": {"action": "count"}}},
            "server.out_of_bounds: unknown key (write count or refuse as server.unusual_values)",
        ),
        (
            {"trainer": {"max_opts": 1, "model_precision": "float32", "model_deltas": 8}},
            "trainer.model_deltas: unknown key (write trainer.models: deltas, or bfloat16_deltas)",
        ),
        (
            {"env_overrides": {1: {"address": "arm"}}},
            "env_overrides: unknown key (write overrides: {ID: {env: {…}}})",
        ),
        (
            {"evaluator": {"seed": 7}},
            "evaluator.seed: unknown key (remove it: evaluations begin with the seed 1000, and policy-eval has --seed)",
        ),
    ],
    ids=str,
)
def test_a_setting_that_is_gone_says_what_to_write_instead(gone: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(problem)}$"):
        build(**gone)


def test_a_caller_has_a_third_of_the_time_after_which_it_is_lost_for_its_first_words_but_at_most_ten_seconds() -> None:
    assert [ServerConfig(lost_seconds=lost).handshake_seconds for lost in (3.0, 30.0, 600.0)] == [1.0, 10.0, 10.0]


def test_actors_that_may_share_an_address_may_share_a_connection() -> None:
    assert [ServerConfig(max_address_actors=n).connection_calls for n in (None, 1, 100)] == [16, 17, 116]


def test_each_actor_may_let_a_message_wait_but_no_more_than_8_mib_and_two_messages_always_fit() -> None:
    assert ServerConfig(max_actors=100).waiting_bytes(MESSAGE_BYTES) == 100 << 23
    assert ServerConfig(max_actors=1).waiting_bytes(1 << 16) == 16 << 16
    assert ServerConfig(max_actors=1).waiting_bytes(256 << 20) == 512 << 20


def test_a_seed_beyond_those_that_actors_take_is_refused() -> None:
    with pytest.raises(ConfigError, match=rf"^seed: .*, found {MAX_SEED + 1}$"):
        build(seed=MAX_SEED + 1)
    assert 2 * build(seed=MAX_SEED).seed <= join_answer.MAX_SEED


# Files and overrides.


def test_a_run_is_named_after_its_file_unless_it_says_otherwise(write: Write) -> None:
    assert load_config(write()).name == "cart-pole"
    assert load_config(write(name="other")).name == "other"


@pytest.mark.parametrize(("stem", "name"), [("my run (2)", "my-run-2-"), ("läufe", "läufe"), ("\udcc3x", "-x")])
def test_what_a_name_cannot_have_is_a_hyphen_if_the_file_has_it(write: Write, stem: str, name: str) -> None:
    """A surrogate stands for a byte that Python cannot decode in the user's locale."""
    assert load_config(write().rename(write().with_stem(stem))).name == name


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [1", "not valid YAML"),
        (b"- 1\n- 2\n", "expected a mapping, found list"),
        (b"\xff\xfe\x00a", "cannot be read"),
        (b"", "env: expected a value, found none"),
    ],
)
def test_a_file_that_holds_no_configuration_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load_config(path)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.yaml: cannot be read: .*No such file"):
        load_config(tmp_path / "missing.yaml")


@pytest.mark.parametrize(
    ("assignment", "changed"),
    [
        ("replay.capacity=500", {"replay": {"capacity": 500}}),
        ("exploration.epsilons=[0.5, 0.1]", {"exploration": {"epsilons": [0.5, 0.1]}}),
        ("trainer.sync_interval=null", {"trainer": {"max_opts": 10, "sync_interval": None}}),
        ("server.insecure=true", {"server": {"insecure": True}}),
        ("env.params.units=[8, 4]", {"env": {**MINIMAL["env"], "params": {"units": [8, 4]}}}),
        ("env.params.a.b.c=x=y", {"env": {**MINIMAL["env"], "params": {"a": {"b": {"c": "x=y"}}}}}),
        ("replay={capacity: 600}", {"replay": {"capacity": 600}}),
    ],
)
def test_an_override_is_read_as_yaml(write: Write, assignment: str, changed: dict[str, Any]) -> None:
    config = load_config(write(), [assignment])
    assert config == build(name="cart-pole", **changed)
    assert config != build(name="cart-pole")


def test_the_last_override_of_a_key_wins_and_its_neighbours_stay(write: Write) -> None:
    path = write(replay={"capacity": 1000, "samples_per_insert": 2.0})
    config = load_config(path, ["replay.capacity=700", "replay.capacity=800"])
    assert (config.replay.capacity, config.replay.samples_per_insert) == (800, 2.0)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("replay.capacity", r"^--set: expected KEY\.KEY=VALUE, found 'replay\.capacity'$"),
        ("=3", r"^--set: expected KEY\.KEY=VALUE, found '=3'$"),
        ("name.first=3", r"^name\.first: 'name' is a value, not a section$"),
        ("metrics.listen=[::1]:0", r"found '\[::1\]:0'; quote a text .*: --set \"metrics\.listen='\[::1\]:0'\"$"),
        ("replay.capacity=[1", r"^--set replay\.capacity: expected a YAML value, found '\[1'$"),
        ("name=2024-13-01", r"^--set name: expected a YAML value, found '2024-13-01' \(month must be in 1"),
        ("replay.capcity=1", r"^replay\.capcity: unknown key \(did you mean 'capacity'\?\)$"),
        ("replay=3", r"^replay: .*, found 3$"),
        ("name=", r"^name: .*, found None$"),
    ],
)
def test_a_wrong_override_is_refused(write: Write, assignment: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(write(), [assignment])


def test_a_dumped_configuration_is_read_back_the_same(tmp_path: Path) -> None:
    config = build(
        name="a.b-c",
        seed=7,
        run_dir="runs/x",
        env={
            "target": "gymnasium:make",
            "params": {"id": "CartPole-v1", "nested": [1, {"a": None}], "limits": [-math.inf, math.inf]},
        },
        trainer={
            "max_opts": 5,
            "max_seconds": 1.5,
            "target_score": -3.25,
            "save_interval": 2,
            "sync_interval": None,
            "cores": "0,4-7",
        },
        exploration={"epsilons": [0.4, 0.16, 0.00066]},
        metrics={"listen": None},
        overrides={1: {"agent": {"explorer": {"final_step": 5}}}},
    )
    path = tmp_path / "resolved.yaml"
    path.write_text(dump_config(config))
    assert load_config(path) == config


@pytest.mark.parametrize(
    ("changes", "ports"),
    [
        ({}, ("127.0.0.1:50051", "127.0.0.1:0", "127.0.0.1:9464", "127.0.0.1:0")),
        ({"server": {"listen": "127.0.0.1:50051"}}, ("127.0.0.1:50051", "127.0.0.1:9464", "127.0.0.1:0")),
        ({"metrics": {"listen": None}}, ("127.0.0.1:50051", "127.0.0.1:0")),
        ({"metrics": {"listen": "0.0.0.0:9464"}}, ("127.0.0.1:50051", "127.0.0.1:0", "0.0.0.0:9464")),
    ],
)
def test_only_a_port_that_nobody_has_named_gives_way_also_when_the_run_is_resumed(
    tmp_path: Path, changes: dict[str, Any], ports: tuple[Any, ...]
) -> None:
    def find_ports(config: RunConfig) -> tuple[Any, ...]:
        return tuple(port for key in FREE_PORTS for port in config.ports_to_try(key))

    config = build(**changes)
    (tmp_path / "config.yaml").write_text(dump_config(config))
    assert find_ports(config) == find_ports(load_config(tmp_path / "config.yaml")) == ports


# Exploration.


def test_actors_beyond_the_last_epsilon_begin_again_at_the_first() -> None:
    exploration = ExplorationConfig(epsilons=(0.4, 0.16, 0.064))
    assert [exploration.epsilon(i) for i in range(7)] == [0.4, 0.16, 0.064, 0.4, 0.16, 0.064, 0.4]
    assert ExplorationConfig().epsilon(5) == 0.05


@pytest.mark.parametrize(
    ("epsilons", "problem"),
    [
        ([], r"exploration\.epsilons: expected at least 1 item, found \[\]"),
        ([0.1, 1.5], r"exploration\.epsilons\.1: expected a number less than or equal to 1, found 1\.5"),
        (0.1, r"exploration\.epsilons: expected a list, found 0\.1"),
    ],
)
def test_epsilons_are_shares_and_at_least_one(epsilons: object, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"^{problem}$"):
        build(exploration={"epsilons": epsilons})


# Actors' part and the check of all parts.


def test_actors_get_their_part_and_nothing_else() -> None:
    config = build(push={"n_buffer": 7}, envs_per_actor=3, env={"target": "a:b", "params": {"x": [1, 2]}})
    part = config.actor_part()
    assert type(part) is ActorConfig
    assert (part.env, part.agent, part.step_processor) == (config.env, config.agent, config.step_processor)
    assert (part.push.n_buffer, part.envs_per_actor) == (7, 3)
    assert set(json.loads(part.model_dump_json())) == {
        "env",
        "agent",
        "step_processor",
        "push",
        "envs_per_actor",
        "evaluator",
    }


def test_an_actors_own_parameters_replace_those_of_all_actors() -> None:
    agent = {"target": "common.agents.dqn:DQN", "params": {"lr": 0.1, "explorer": {"start": 0.9, "final_step": 100}}}
    config = build(agent=agent, overrides={1: {"agent": {"explorer": {"final_step": 5}}}, "3": {"agent": {"lr": 0.2}}})
    assert config.part_of(1).agent.params == {"lr": 0.1, "explorer": {"start": 0.9, "final_step": 5}}
    assert config.part_of(3).agent.params == {**agent["params"], "lr": 0.2}  # type: ignore[dict-item]
    assert config.part_of(0) == config.part_of(2) == config.actor_part()
    assert validate(ActorConfig, json.loads(config.part_of(1).model_dump_json())) == config.part_of(1)


def test_an_actors_own_parameters_are_shown_and_overridden_like_all_others(write: Write) -> None:
    path = write(overrides={1: {"agent": {"lr": 0.1, "tau": 0.5}}})
    config = load_config(path, ["overrides.1.agent.lr=0.2", "overrides.2.agent.lr=0.3"])
    assert config.overrides == {1: {"agent": {"lr": 0.2, "tau": 0.5}}, 2: {"agent": {"lr": 0.3}}}
    assert "lr: 0.3" in dump_config(config)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {1: {"agent": {"lr": 0.1}}, 3: {"agent": {"lr_": 1}}},
            r"^overrides\.3\.agent\.lr_: unknown key \(did you mean 'lr'\?\)$",
        ),
        ({2: {"agent": {"explorer": {"start": 7}}}}, r"^overrides\.2\.agent\.explorer\.start: .*, found 7$"),
        ({2: {"env": {"lenght": 7}}}, r"^overrides\.2\.env\.lenght: unknown parameter"),
        ({2: {"lr": 0.1}}, r"^overrides\.2\.lr.*: expected 'agent' or 'env', found 'lr'\n"),
        ({-1: {}}, r"^overrides\.-1.*: .*greater than or equal to 0, found -1$"),
        ({"first": {}}, r"^overrides\.first.*: expected an integer, found 'first'$"),
    ],
)
def test_a_wrong_parameter_of_one_actor_is_refused_with_the_actors_id(overrides: dict[Any, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(overrides=overrides).check()


PARTS = ("env", "agent", "step_processor", "evaluator")


@pytest.mark.parametrize("part", PARTS)
def test_the_check_of_a_run_tries_each_part(part: str) -> None:
    targets = {name: (found or {}).get("target") for name, found in build().model_dump().items() if name in PARTS}
    targets["step_processor"] = "examples.own_processor:ScaledReward"
    with pytest.raises(PluginError, match="no_such_module"):
        build(**{part: {"target": "no_such_module:Thing"}}).check()
    with pytest.raises(ConfigError, match=rf"{part}\.params\.bogus: unknown"):
        build(**{part: {"target": targets[part], "params": {"bogus": 1}}}).check()


def test_parameters_for_evaluation_are_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"^env\.eval_params\.lenth: unknown parameter .*'length'"):
        build(env={"target": "examples.own_parts:Corridor", "eval_params": {"lenth": 3}}).check()


def test_the_check_of_a_run_includes_the_server() -> None:
    with pytest.raises(ConfigError, match=r"server\.listen: '0\.0\.0\.0:1' is reachable from other hosts"):
        build(server={"listen": "0.0.0.0:1"}).check()


def test_metrics_are_encrypted_by_the_servers_certificate_and_only_where_it_is_asked_for() -> None:
    tls = {"certificate": "server.pem", "key": "server.key", "client_ca": "ca.pem"}
    assert build(server={"tls": tls}).metrics_tls is None
    config = build(server={"tls": tls}, metrics={"encrypted": True})
    assert config.metrics_tls == config.server.tls


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^seed: .*greater than or equal to 0, found -1$"):
        build(seed=-1)


def test_acknowledgements_can_wait_only_for_a_mirror_that_there_is() -> None:
    with pytest.raises(ValidationError, match=r"acknowledge: mirrored needs storage.mirror"):
        StorageConfig(acknowledge="mirrored")
    assert StorageConfig(acknowledge="mirrored", mirror="s3://bucket/run").mirror_seconds == 5.0


@pytest.mark.parametrize("place", ["/mnt/share", "s3:bucket", "bucket", ""])
def test_a_mirror_is_named_by_a_url(place: str) -> None:
    with pytest.raises(ValidationError, match="mirror"):
        StorageConfig(mirror=place)


def test_the_port_for_actors_is_none_of_the_two_of_the_metrics() -> None:
    for port in (6, 7):
        with pytest.raises(ConfigError, match=r"metrics\.listen: expected two ports in a row without that of server"):
            build(server={"listen": f"127.0.0.1:{port}"}, metrics={"listen": "127.0.0.1:6"})
    build(server={"listen": "127.0.0.1:0"}, metrics={"listen": "127.0.0.1:0"})
