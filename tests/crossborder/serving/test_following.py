"""A policy that is replaced while it acts: real directories, as a run writes them."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from common.agents.dqn import DQN
from common.config.actor_config import ActorConfig
from common.data import Array, Leaves
from common.errors import PluginError
from common.interfaces import Agent
from common.parts import build_parts
from common.plugins.part_config import EnvConfig, PluginConfig
from common.wire.trust import ANY
from crossborder.serving import following
from crossborder.serving.following import stamps_of
from crossborder.serving.saved_policies import opening
from crossborder.serving.served_policy import ServedPolicy
from crossborder.serving.serving_config import ServingConfig
from learner.shared.durable import put_in_place
from learner.storage.checkpoint import Checkpoints
from tests.conftest import PATIENCE

OBS = np.random.default_rng(0).normal(scale=5, size=(32, 4)).astype(np.float32)
LANES = np.arange(32)


def config(target: str = "DQN", **params: object) -> ActorConfig:
    env = EnvConfig(target="gymnasium:make", params={"id": "CartPole-v1"})
    return ActorConfig(env=env, agent=PluginConfig(target=f"common.agents.{target.lower()}:{target}", params=params))


def save(run: Path, opt_steps: int, of: ActorConfig | None = None) -> Agent:
    """Save a policy as ``best`` with other parameters for other opt steps; return its agent."""
    of = of or config(units=[8])
    agent = build_parts(of, seed=opt_steps).agent
    Checkpoints(run, of, "run").save("best", agent, opt_steps=opt_steps)
    agent.eval()
    return agent


class ActsForAll(DQN):
    """Acts for all of its lanes at once only."""

    def sample(self, obs: Leaves) -> Leaves:  # type: ignore[override]
        return super().sample(obs)


def test_an_agent_that_cannot_act_for_some_lanes_is_named_before_a_client_comes(tmp_path: Path) -> None:
    agent = PluginConfig(target="tests.crossborder.serving.test_following:ActsForAll", params={"units": [8]})
    save(tmp_path, 1, config().model_copy(update={"agent": agent}))
    with (
        pytest.raises(PluginError, match=r"ActsForAll\.sample acts for all lanes at once"),
        opening({"": tmp_path / "best"}, [ANY], ServingConfig()),
    ):
        pass


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "LOOK_SECONDS", 0.01)


def following_in(run: Path, act: Callable[[ServedPolicy], Awaitable[None]], **settings: object) -> None:
    """Serve ``best`` of a run while ``act`` runs."""

    async def both(policy: ServedPolicy) -> None:
        works = [asyncio.ensure_future(work) for work in policy.works()]
        await asyncio.wait_for(act(policy), PATIENCE)
        for work in works:
            work.cancel()

    with opening({"": run / "best"}, [], ServingConfig(**settings)) as (policy,):
        asyncio.run(both(policy))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the directory changes without an event
        await asyncio.sleep(0.005)


def sample(policy: ServedPolicy, *, begins: bool = True) -> Array:
    actions = policy.player.sample(OBS, np.full(32, begins), LANES)
    assert isinstance(actions, np.ndarray)
    return actions


@pytest.mark.parametrize("settings", [{}, {"explore": True}, {"record": "episodes"}], ids=str)
def test_the_policy_that_acts_is_always_the_one_whose_opt_steps_are_told(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    agents = {0: save(tmp_path, 0)}
    if "record" in settings:
        settings["record"] = tmp_path / "episodes"

    async def act(policy: ServedPolicy) -> None:
        for opt_steps in range(1, 6):
            agents[opt_steps] = await asyncio.to_thread(save, tmp_path, opt_steps)
            while policy.player.opt_steps != opt_steps:
                told, params = policy.player.opt_steps, agents[policy.player.opt_steps].save_params()
                actions = sample(policy)
                if "explore" not in settings:
                    np.testing.assert_array_equal(actions, agents[told].sample(OBS))
                own = policy.player.agent if hasattr(policy.player, "agent") else policy.player._agent  # type: ignore[attr-defined]
                for name, tensor in own.save_params().items():
                    assert torch.equal(tensor, params[name]), "its parameters are whole"
                await asyncio.sleep(0.002)
        assert policy.figures.taken_up == 5

    following_in(tmp_path, act, **settings)


def test_memories_go_on_with_the_newer_policy(tmp_path: Path) -> None:
    recurrent = config("R2D2", units=[8], memory={"width": 8})
    save(tmp_path, 1, recurrent)
    reference = build_parts(recurrent, seed=1).agent
    reference.eval()

    async def act(policy: ServedPolicy) -> None:
        reference.begin(np.ones(32, bool))
        np.testing.assert_array_equal(sample(policy), reference.sample(OBS))
        np.testing.assert_array_equal(sample(policy, begins=False), reference.sample(OBS))
        newer = await asyncio.to_thread(save, tmp_path, 7, recurrent)
        await until(lambda: policy.player.opt_steps == 7)
        reference.load_params(newer.save_params())
        for _ in range(3):
            np.testing.assert_array_equal(sample(policy, begins=False), reference.sample(OBS))
        newer.begin(np.ones(32, bool))
        assert (newer.sample(OBS) != reference.sample(OBS)).any(), "these actions depend on the memories"

    following_in(tmp_path, act)


def no_weights(draft: Path) -> None:
    (draft / "model.safetensors").write_bytes(b"no weights")


def no_meta(draft: Path) -> None:
    (draft / "meta.json").write_text("{}")


def nan(draft: Path) -> None:
    params = load_file(draft / "model.safetensors")
    bad = {name: torch.full_like(tensor, float("nan")) for name, tensor in params.items()}
    save_file(bad, draft / "model.safetensors")


def other_agent(draft: Path) -> None:
    meta = json.loads((draft / "meta.json").read_text())
    meta["config"]["agent"]["params"] = {"units": [8], "double_dqn": False}
    (draft / "meta.json").write_text(json.dumps(meta))


def other_shapes(draft: Path) -> None:
    params = load_file(draft / "model.safetensors")
    last = [*params][-1]
    params = {name: tensor + 1 for name, tensor in params.items()}
    params[last] = torch.zeros(3, 3)
    save_file(params, draft / "model.safetensors")


BROKEN: dict[Callable[[Path], None], str] = {
    no_weights: "no readable checkpoint",
    no_meta: "found no valid config",
    nan: "expected finite parameters",
    other_agent: "expected the agent of the policy that acts, found other settings: start the service anew",
    other_shapes: "the agent does not take it",
}


@pytest.mark.parametrize("breaks", BROKEN)
def test_a_policy_that_cannot_act_leaves_the_one_before_it_and_is_named_once(
    tmp_path: Path, breaks: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    agent = save(tmp_path, 1)

    async def act(policy: ServedPolicy) -> None:
        save(tmp_path / "elsewhere", 2)
        draft = tmp_path / "draft"
        (tmp_path / "elsewhere" / "best").rename(draft)
        breaks(draft)
        put_in_place(draft, tmp_path / "best")
        await until(lambda: policy.figures.not_taken_up == 1)
        await asyncio.sleep(20 * following.LOOK_SECONDS)
        np.testing.assert_array_equal(sample(policy), agent.sample(OBS))
        assert (policy.player.opt_steps, policy.figures.not_taken_up) == (1, 1)
        save(tmp_path, 3)
        await until(lambda: policy.player.opt_steps == 3)
        assert policy.figures.taken_up == 1

    with caplog.at_level(logging.ERROR):
        following_in(tmp_path, act)
    (line,) = [record.message for record in caplog.records if "goes on to act" in record.message]
    assert BROKEN[breaks] in line


def test_a_policy_that_could_not_be_read_for_a_moment_is_read_again(tmp_path: Path) -> None:
    save(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def act(policy: ServedPolicy) -> None:
        save(tmp_path, 2)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # No file can be opened any more.
        try:
            await until(lambda: policy.figures.not_taken_up == 1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await until(lambda: policy.player.opt_steps == 2)
        assert (policy.figures.taken_up, policy.figures.not_taken_up) == (1, 1)

    following_in(tmp_path, act)


def test_a_place_without_a_policy_for_a_moment_is_no_fault(tmp_path: Path) -> None:
    save(tmp_path, 1)

    async def act(policy: ServedPolicy) -> None:
        aside = tmp_path / "best-1"
        (tmp_path / "best").rename(aside)
        assert None in stamps_of(tmp_path / "best")
        await asyncio.sleep(20 * following.LOOK_SECONDS)
        save(tmp_path, 2)
        await until(lambda: policy.player.opt_steps == 2)
        assert (policy.figures.taken_up, policy.figures.not_taken_up) == (1, 0)

    following_in(tmp_path, act)
