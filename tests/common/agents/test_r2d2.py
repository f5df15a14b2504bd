"""R2D2's targets, losses and priorities, against the formulas written out step by step."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from common.agents.machinery.gradient_step import Batch, to_tensors
from common.agents.r2d2 import R2D2
from common.errors import ConfigError
from common.interfaces import EnvSpec
from common.lanes.building import spec_of
from common.settings import validate
from crossborder.testing import check_agent
from learner.views.sequences import Sequences
from tests.common.agents.parts import Structured
from tests.common.agents.sequences import Prioritized, played_by

ENV_ID, GAMMA = "CartPole-v1", 0.9
SMALL: dict[str, Any] = {"units": (8,), "memory": {"width": 4}, "discount_factor": GAMMA, "lr": 0.01}


def make(**params: Any) -> R2D2:
    agent = R2D2(spec_of(gymnasium.make(ENV_ID)), seed=0, epsilon=1.0, **SMALL, **params)
    with torch.no_grad():
        for parameter in agent.qnet_tgt.parameters():
            parameter.mul_(1.5)  # So that the two networks differ.
    return agent


def drawn(agent: R2D2, size: int = 5) -> dict[str, Any]:
    env = gymnasium.make(ENV_ID)
    return played_by(agent, spec_of(env), env, 60, length=6, burn_in=2).batch(size)


def h(x: float) -> float:
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 1e-3 * x


def inverse_h(x: float) -> float:
    return math.copysign(((math.sqrt(1 + 4e-3 * (abs(x) + 1 + 1e-3)) - 1) / 2e-3) ** 2 - 1, x)


def values_step_by_step(agent: R2D2, net: Any, batch: Batch, b: int) -> list[list[float]]:
    """The action values of sequence b after each of its observations, one call of the network for each."""
    state, number, found = batch["state"][b : b + 1, :-1], int(batch["state"][b, -1]), []
    for t in range(batch["obs"].shape[1]):
        before = torch.tensor([[[float(number == i + 1) for i in range(agent.actions.size)]]])
        values, state = net(batch["obs"][b : b + 1, t : t + 1], before, state)
        found.append(values[0, 0].tolist())
        number = int(batch["action"][b, t]) + 1 if t < batch["action"].shape[1] else 0
    return found


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("rescaling", [True, False])
def test_targets_and_predictions_are_those_of_the_paper(double: bool, rescaling: bool) -> None:
    agent = make(n_steps=3, value_rescaling=rescaling, double_dqn=double)
    batch = to_tensors(drawn(agent), agent.device)
    with torch.no_grad():
        _, prediction, target = agent._loss(batch, agent.qnet_tgt)
    forth, back = (h, inverse_h) if rescaling else (float, float)
    for b in range(5):
        online, older = (values_step_by_step(agent, net, batch, b) for net in (agent.qnet, agent.qnet_tgt))
        steps = int(batch["mask"][b].sum())
        for t in range(steps):
            assert float(prediction[b, t]) == pytest.approx(online[t][int(batch["action"][b, t])], abs=1e-5)
            last = min(t + 3, steps) - 1
            total = sum(GAMMA ** (k - t) * float(batch["reward"][b, k]) for k in range(t, last + 1))
            if not batch["terminated"][b, last]:
                chooser = online if double else older
                best = int(np.argmax(chooser[last + 1]))
                total += GAMMA ** (last + 1 - t) * back(older[last + 1][best])
            assert float(target[b, t]) == pytest.approx(forth(total), rel=1e-3, abs=1e-4)


def test_only_warm_steps_count_and_each_sequence_has_its_weight_and_one_priority() -> None:
    agent = make(critic_loss="mse", max_share=0.9)
    items, weights = drawn(agent, 4), np.array([0.1, 1.0, 0.5, 0.2], np.float32)
    assert not items["warm"].all()
    _, prediction, target = agent._loss(to_tensors(items, agent.device), agent.qnet_tgt)
    errors = (target - prediction).detach().numpy()
    warm = [errors[b][items["warm"][b]] for b in range(4)]
    loss = sum(weights[b] * (warm[b] ** 2).sum() for b in range(4)) / items["warm"].sum()
    memory = Prioritized(items, weights)
    record = agent.opt(memory)
    assert record is not None
    assert float(record["loss"]) == pytest.approx(loss, rel=1e-5)
    for name, values in (("pred_mean", prediction), ("tgt_mean", target)):
        in_rewards = [inverse_h(value) for value in values[torch.from_numpy(items["warm"])].tolist()]
        assert float(record[name]) == pytest.approx(np.mean(in_rewards), rel=1e-3)
    expected = [0.9 * np.abs(each).max() + 0.1 * np.abs(each).mean() for each in warm]
    np.testing.assert_allclose(memory.told, [expected], rtol=1e-5)


def test_the_record_has_values_in_the_unit_of_rewards() -> None:
    agent = make()
    with torch.no_grad():
        for parameter in agent.qnet.parameters():
            parameter.zero_()
        list(agent.qnet.parameters())[-1][0] = h(50.0)  # The bias of the state value.
    record = agent.opt(Prioritized(drawn(agent, 4), np.ones(4, np.float32)))
    assert record is not None
    assert float(record["pred_mean"]) == pytest.approx(50, rel=1e-3)


def test_it_may_be_noisy_and_normalise_and_take_any_observations_and_joint_actions() -> None:
    spaces = gymnasium.spaces
    observations = spaces.Dict({"a": spaces.Box(-1, 1, (3,), np.float32), "b": spaces.Discrete(4)})
    env = Structured(observations, spaces.MultiDiscrete([2, 3]))
    settings: dict[str, Any] = {"units": (8,), "memory": {"width": 4}, "batch_size": 8}
    settings |= {"noisy": 0.5, "normalize_observations": True, "n_updates_per_opt": 2}

    def build(spec: EnvSpec, seed: int, epsilon: float, device: str) -> R2D2:
        return R2D2(spec, seed=seed, epsilon=epsilon, device=device, **settings)

    check_agent(build, env, view=lambda schema: Sequences(schema, length=5, burn_in=1), steps=100)


def test_a_network_may_be_below_the_memory_and_units_above_it() -> None:
    network = {"target": "common.agents.networks:Mlp", "params": {"units": [8]}}
    agent = make(network=network, feature_dim=6)
    assert agent.qnet.get_parameter("encoder.memory.net.weight_ih_l0").shape == (4 * 4, 6 + 2)
    assert agent.opt(Prioritized(drawn(agent, 4), np.ones(4, np.float32))) is not None


def test_shifts_of_pictures_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"agent\.params\.random_shift: expected 0, found 4"):
        validate(R2D2.Config, {"random_shift": 4}, "agent.params")
