"""``Join`` and ``Check``, by hand to a real ingest process."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from common.errors import RefusedError
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import PROTOCOL_VERSION, SupersededError
from learner.ingest.joining import join
from learner.ingest.leading import Leading
from learner.ingest.refusals import JOIN_REFUSALS, status_of
from learner.loop.server import LearnerServer
from learner.shared.rank_table import RankTable
from tests.conftest import MakeConfig, wait_for
from tests.learner.ingest.by_hand import SECONDS, Client, Talk, refusal
from tests.learner.ingest.cores import LoneCore
from tests.parts import counting_schema, expected_rows


def test_join_tells_everything_an_actor_needs(client: Client) -> None:
    joined = client.join()
    assert joined.actor_id == 0
    assert joined.seed == 0
    assert joined.epsilon == pytest.approx(0.05)
    assert joined.last_seq == 0
    assert (joined.newest.incarnation, joined.newest.opt_steps) == (1, 0)
    assert joined.schema.hash == client.schema.hash
    assert "tests.parts:CountingEnv" in joined.config_json
    assert joined.limits.max_rows == 62_500, "a sixteenth of the capacity"
    again = client.join()
    assert (again.actor_id, again.run_id) == (0, joined.run_id)


def test_invariant_12_exploration_differs_per_actor_and_the_learner_decides_it(make_config: MakeConfig) -> None:
    with LearnerServer(make_config(exploration={"epsilons": [0.4, 0.1, 0.02]})) as server:
        epsilons = [Client(server, incarnation).join().epsilon for incarnation in (1, 2, 3, 4)]
    assert epsilons == pytest.approx([0.4, 0.1, 0.02, 0.4])


def test_an_actor_with_parameters_of_its_own_gets_them_and_the_others_do_not(make_config: MakeConfig) -> None:
    agent = {"target": "common.agents.dqn:DQN", "params": {"lr": 0.5, "explorer": {"start": 0.9}}}
    with LearnerServer(make_config(agent=agent, overrides={1: {"agent": {"explorer": {"final_step": 5}}}})) as server:
        told = [json.loads(Client(server, incarnation).join().config_json) for incarnation in (1, 2, 3)]
    explorers = [config["agent"]["params"].pop("explorer") for config in told]
    assert explorers == [{"start": 0.9}, {"start": 0.9, "final_step": 5}, {"start": 0.9}]
    assert told[0] == told[1] == told[2]


def test_an_actor_gets_what_its_environment_is_overridden_with(make_config: MakeConfig) -> None:
    env = {"target": "gymnasium:make", "params": {"id": "CartPole-v1", "render_mode": None}}
    agent = {"target": "common.agents.dqn:DQN", "params": {}}
    with LearnerServer(
        make_config(env=env, agent=agent, overrides={1: {"env": {"sutton_barto_reward": True}}})
    ) as server:
        told = [json.loads(Client(server, incarnation).join().config_json) for incarnation in (1, 2)]
    assert [config["env"]["params"].get("sutton_barto_reward") for config in told] == [None, True]


def test_every_actor_process_has_its_own_seeds_even_when_it_takes_over_an_id(make_config: MakeConfig) -> None:
    with LearnerServer(make_config(seed=50, envs_per_actor=4)) as server:
        gone, other, late = (Client(server, incarnation) for incarnation in (1, 2, 3))
        assert (gone.join().seed, other.join().seed, gone.join().seed) == (50, 54, 50)
        talk = Talk(gone.stub)
        talk.say(gone.batch(0, rows=0, payload=b"", report=pb.Report(leaving=True)))
        joined = late.join()
    assert (joined.actor_id, joined.seed) == (0, 58)


def test_the_id_and_epsilon_of_a_lost_actor_pass_on_but_its_seed_does_not(make_config: MakeConfig) -> None:
    exploration = {"epsilons": [0.4, 0.1]}
    with LearnerServer(make_config(exploration=exploration, server={"max_actors": 2, "lost_seconds": 3.0})) as server:
        staying, lost, late = (Client(server, incarnation) for incarnation in (1, 2, 3))
        staying.join()
        before = lost.join()
        broken = Talk(lost.stub)
        broken.say(lost.batch(0, rows=0, payload=b""))
        broken.cancel()
        talk = Talk(staying.stub)
        talk.say(staying.batch(1))
        after: list[pb.JoinResponse] = []

        def joins() -> bool:
            talk.say(staying.batch(0, rows=0, payload=b""))  # It is not silent.
            with contextlib.suppress(grpc.RpcError):
                after.append(late.join())
            return bool(after)

        wait_for(joins, "the lost one is given up")
    assert (after[0].actor_id, after[0].epsilon) == (before.actor_id, before.epsilon)
    assert before.epsilon == pytest.approx(0.1)
    assert (before.seed, after[0].seed) == (1, 2), "it would replay the episodes of the lost one"


def test_another_protocol_version_is_refused_by_name(guest: Client) -> None:
    with pytest.raises(grpc.RpcError) as error:
        guest.join(protocol_version=PROTOCOL_VERSION + 1)
    assert refusal(error)[:2] == (grpc.StatusCode.FAILED_PRECONDITION, "protocol_mismatch")
    assert f"the learner speaks {PROTOCOL_VERSION}, the actor {PROTOCOL_VERSION + 1}" in refusal(error)[2]


def test_when_all_ids_are_taken_a_join_is_refused_for_now(make_config: MakeConfig) -> None:
    with LearnerServer(make_config(server={"max_actors": 1})) as server:
        Client(server, 1).join()
        with pytest.raises(grpc.RpcError) as error:
            Client(server, 2).join()
    assert refusal(error)[:2] == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too_many_actors")


def test_check_tells_a_host_what_it_needs_and_joins_nobody(client: Client) -> None:
    found = client.stub.Check(pb.CheckRequest(), timeout=SECONDS)
    assert (found.protocol_version, found.actors, found.max_actors) == (
        PROTOCOL_VERSION,
        0,
        client.server.config.server.max_actors,
    )
    joined = client.join()
    assert (found.schema, found.config_json, found.limits) == (joined.schema, joined.config_json, joined.limits)
    assert client.stub.Check(pb.CheckRequest(), timeout=SECONDS).actors == 1


def test_check_has_the_parameters_of_the_id_that_is_asked_for(make_config: MakeConfig) -> None:
    agent = {"target": "common.agents.dqn:DQN", "params": {"lr": 0.5}}
    config = make_config(agent=agent, overrides={1: {"agent": {"lr": 0.25}}}, server={"max_actors": 2})
    with LearnerServer(config) as server:
        stub = Client(server).stub
        questions = [pb.CheckRequest(wanted_id=actor_id) for actor_id in (None, 0, 1)]
        told = [json.loads(stub.Check(question, timeout=SECONDS).config_json) for question in questions]
    assert [config["agent"]["params"]["lr"] for config in told] == [0.5, 0.5, 0.25]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"incarnation": 0}, "incarnation: expected a random number, found 0"),
        ({"host": "x" * 256}, "host: expected at most 255 characters, found 256"),
        ({"version": "1.0<b>"}, "version: expected printable characters and no markup, found '<'"),
    ],
)
def test_a_join_that_breaks_the_protocol_is_refused_by_name(
    guest: Client, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(grpc.RpcError) as error:
        guest.join(**changes)
    assert refusal(error)[1:] == ("bad_items", message)


@pytest.fixture
def ranked(make_config: MakeConfig, tmp_path: Path) -> Iterator[LoneCore]:
    """The core of rank 1 of two ranks; rank 0 has no actors and this one has three."""
    lone = LoneCore(tmp_path / "shared", make_config(), counting_schema())
    lone.core.leading = Leading(tmp_path / "shared", 1, 2)
    RankTable.create(tmp_path / "shared", 1, ["rank-0:1", "rank-1:1"]).actors[:] = 0, 3
    yield lone
    lone.close()


def asks(incarnation: int, **changes: Any) -> pb.JoinRequest:
    values = {"protocol_version": PROTOCOL_VERSION, "incarnation": incarnation, "takes_elsewhere": True, **changes}
    return pb.JoinRequest(**values)


@pytest.mark.parametrize("changes", [{}, {"evaluates": True}])
def test_a_new_actor_is_led_to_the_rank_with_fewer_actors_and_one_that_evaluates_to_rank_0(
    ranked: LoneCore, changes: dict[str, Any]
) -> None:
    assert join(ranked.core, asks(1, **changes)) == pb.JoinResponse(elsewhere="rank-0:1")
    assert len(ranked.core.registry.present_rows()) == 0, "it has no id here"


def test_an_actor_that_evaluates_and_does_not_go_to_rank_0_is_refused(ranked: LoneCore) -> None:
    with pytest.raises(RefusedError, match=r"expected a join at rank 0, rank-0:1, .* found rank 1"):
        join(ranked.core, asks(1, evaluates=True, takes_elsewhere=False))


@pytest.mark.parametrize("changes", [{"takes_elsewhere": False}, {"wanted_id": 4}, {"former_incarnation": 9}])
def test_an_actor_that_belongs_here_or_does_not_take_it_is_not_led(ranked: LoneCore, changes: dict[str, Any]) -> None:
    joined = join(ranked.core, asks(1, **changes))
    assert (joined.elsewhere, joined.run_id) == ("", "lone")
    assert join(ranked.core, asks(1)).elsewhere == "", "it is known here"


def test_actors_of_all_ranks_share_the_list_of_epsilons(ranked: LoneCore, make_config: MakeConfig) -> None:
    ranked.core.config = make_config(exploration={"epsilons": [0.4, 0.3, 0.2, 0.1]})
    told = [join(ranked.core, asks(i, takes_elsewhere=False)).epsilon for i in (1, 2)]
    assert told == pytest.approx([0.3, 0.1])


@pytest.fixture
def mirrored(make_config: MakeConfig, tmp_path: Path) -> Iterator[LoneCore]:
    """The core of a run whose mirror was claimed with epoch 100, and whose acknowledgements wait for it."""
    storage = {"mirror": f"file://{tmp_path}/mirror", "acknowledge": "mirrored"}
    lone = LoneCore(tmp_path / "shared", make_config(storage=storage), counting_schema())
    lone.mirror.epoch = 100
    yield lone
    lone.close()


def test_an_actor_that_knows_a_later_learner_of_the_run_is_told_to_come_later(mirrored: LoneCore) -> None:
    assert join(mirrored.core, asks(1, run_id="lone", epoch=100)).epoch == 100
    with pytest.raises(SupersededError, match=r"epoch: expected at most 100, found 101: another learner goes on"):
        join(mirrored.core, asks(1, run_id="lone", epoch=101))
    assert status_of(SupersededError(""))[1] in JOIN_REFUSALS
    assert join(mirrored.core, asks(2, run_id="another", epoch=101)).epoch == 100, "its epochs are those of another run"


def test_a_run_without_a_mirror_takes_actors_of_every_epoch(make_config: MakeConfig, tmp_path: Path) -> None:
    lone = LoneCore(tmp_path / "shared", make_config(), counting_schema())
    assert join(lone.core, asks(1, run_id="lone", epoch=101)).epoch == 0
    lone.close()


def test_last_seq_is_that_of_the_last_batch_that_is_mirrored(mirrored: LoneCore) -> None:
    core, items = mirrored.core, expected_rows(0, 9)
    for seq in (1, 2, 3):
        core.writer.append({name: column[:2] for name, column in items.items()}, 2, incarnation=1, seq=seq)
    for end, last in ((0, 0), (2, 1), (3, 1), (4, 2), (6, 3)):
        mirrored.mirror.mirrored = end
        assert join(core, asks(1)).last_seq == last
