"""Recurrent SAC's targets and losses, against the formulas written out step by step."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from common.agents.entropy import squashed_gaussian
from common.agents.machinery.gradient_step import Batch, to_tensors
from common.agents.recurrent_sac import RecurrentSAC
from common.data import Items
from common.lanes.building import spec_of
from crossborder.testing import check_agent
from learner.views.sequences import Sequences
from tests.common.agents.parts import Structured, model_of
from tests.common.agents.sequences import Prioritized, played_by

ENV_ID, GAMMA, ENT_COEF = "Pendulum-v1", 0.9, 0.3
SMALL: dict[str, Any] = {"units": (8,), "memory": {"width": 4}, "discount_factor": GAMMA, "ent_coef": ENT_COEF}


def make(**params: Any) -> RecurrentSAC:
    return RecurrentSAC(spec_of(gymnasium.make(ENV_ID)), seed=0, **{"auto_ent_coef": False, **SMALL, **params})


def drawn(agent: RecurrentSAC, size: int = 4) -> Items:
    env = gymnasium.make(ENV_ID)
    return played_by(agent, spec_of(env), env, 60, length=5, burn_in=2).batch(size)


def noise_of(agent: RecurrentSAC, batch: Batch) -> torch.Tensor:
    """The noise that the next update draws, ``[B, L + 1, A]``."""
    generator = torch.Generator().manual_seed(0)
    generator.set_state(agent._generator.get_state())
    n, length = batch["reward"].shape
    return torch.randn((n * (length + 1), 1), generator=generator).view(n, length + 1, 1)


@torch.no_grad()
def steps_of(agent: RecurrentSAC, batch: Batch, b: int, noise: torch.Tensor) -> dict[str, list[Any]]:
    """By calls of the networks for single steps of sequence b: values of taken and of new actions."""
    state, before = batch["state"][b : b + 1, :-1], batch["state"][b : b + 1, -1:]
    memories = {"q": torch.zeros(1, 8), "q_tgt": torch.zeros(1, 8)}
    found: dict[str, list[Any]] = {"q": [], "q_tgt": [], "q_new": [], "log_prob": []}
    for t in range(noise.shape[1]):
        obs = batch["obs"][b : b + 1, t : t + 1]
        outputs, state = agent.actor(obs, before[:, None], state)
        mean, log_std = outputs[0].chunk(2, dim=1)
        action, log_prob = squashed_gaussian(mean, log_std.clamp(-20, 2), noise[b, t : t + 1])
        found["log_prob"].append(float(log_prob))
        taken = batch["action"][b, min(t, batch["action"].shape[1] - 1)].view(1, 1) / 2  # Actions are in [-2, 2].
        for name, critics in (("q", agent.critics), ("q_tgt", agent.critics_tgt)):
            features, memories[name] = critics.encoder(obs, before[:, None], memories[name])
            values = [critics(features, each[None])[:, 0, 0] for each in (taken, action)]
            found[name].append(values[0] if name == "q" else values[1].min())
            if name == "q":
                found["q_new"].append(values[1].min())
        before = taken
    return found


@pytest.mark.parametrize("n_steps", [1, 3])
def test_losses_and_priorities_are_those_of_the_formulas(n_steps: int) -> None:
    agent = make(n_steps=n_steps, reward_scale=0.5, lr=1e-9)  # The critics hardly change before the actor learns.
    items, weights = drawn(agent), np.array([0.1, 1.0, 0.5, 0.2], np.float32)
    batch = to_tensors(items, agent.device)
    noise, counts = noise_of(agent, batch), items["warm"]
    memory, losses, soft, priorities = Prioritized(items, weights), 0.0, 0.0, []
    means = {"q_mean": 0.0, "entropy": 0.0}
    for b in range(4):
        found, errors = steps_of(agent, batch, b, noise), []
        steps = int(items["mask"][b].sum())
        for t in range(steps):
            last = min(t + n_steps, steps) - 1
            target = sum(GAMMA ** (k - t) * 0.5 * items["reward"][b, k] for k in range(t, last + 1))
            value = float(found["q_tgt"][last + 1]) - ENT_COEF * found["log_prob"][last + 1]
            target += GAMMA ** (last + 1 - t) * value  # Pendulum never terminates.
            if counts[b, t]:
                error = found["q"][t].numpy() - target
                losses += float(weights[b] * (error**2).mean()) / counts.sum()
                soft += (float(found["q_new"][t]) - ENT_COEF * found["log_prob"][t]) / counts.sum()
                means["q_mean"] += float(found["q"][t].mean()) / counts.sum()
                means["entropy"] -= found["log_prob"][t] / counts.sum()
                errors.append(np.abs(error).mean())
        priorities.append(0.9 * max(errors) + 0.1 * np.mean(errors))
    record = agent.opt(memory)
    assert record is not None
    assert float(record["loss_critic"]) == pytest.approx(losses, rel=1e-4)
    assert float(record["loss_actor"]) == pytest.approx(-soft, rel=1e-4)
    assert {name: float(record[name]) for name in means} == pytest.approx(means, rel=1e-4)
    np.testing.assert_allclose(memory.told[0], priorities, rtol=1e-4)


def test_the_entropy_coefficient_rises_while_the_entropy_is_below_its_target() -> None:
    for target, rises in ((100.0, True), (-100.0, False)):
        agent = make(auto_ent_coef=True, target_entropy=target, lr=0.01)
        record = agent.opt(Prioritized(drawn(agent), np.ones(4, np.float32)))
        assert record is not None
        assert float(record["ent_coef"]) == pytest.approx(ENT_COEF)
        assert (float(agent.ent_coef().detach()) > ENT_COEF) is rises


def test_actions_are_random_until_the_learner_has_begun_and_the_memory_goes_on_meanwhile() -> None:
    agent, obs = make(random_opts=1), np.zeros((500, 3), np.float32)
    agent.train()
    agent.begin(np.ones(500, np.bool_))
    actions = agent.sample(obs)
    assert actions.min() < -1.9
    assert actions.max() > 1.9
    assert abs(float(actions.std()) - 4 / 12**0.5) < 0.1, "uniform in [-2, 2]"
    agent.sample(obs)
    np.testing.assert_allclose(agent.extras()["state"][:, -1], actions[:, 0] / 2, rtol=1e-5)
    assert agent.extras()["state"][:, :-1].any()
    agent.sync_model(model_of(agent, 1))
    agent.begin(np.ones(500, np.bool_))
    assert agent.sample(obs).std() != pytest.approx(float(actions.std()), rel=1e-6)


def test_it_may_normalise_and_take_any_observations() -> None:
    spaces = gymnasium.spaces
    observations = spaces.Dict({"a": spaces.Box(-1, 1, (3,), np.float32), "b": spaces.Discrete(4)})
    env = Structured(observations, spaces.Box(-1, 3, (2, 2), np.float32))

    def build(spec: Any, seed: int, epsilon: float, device: str) -> RecurrentSAC:
        given = {**SMALL, "normalize_observations": True, "batch_size": 8, "n_critics": 3}
        return RecurrentSAC(spec, seed=seed, epsilon=epsilon, device=device, **given)

    check_agent(build, env, view=lambda schema: Sequences(schema, length=5, burn_in=1), steps=100)
