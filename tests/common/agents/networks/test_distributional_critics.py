from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from common.agents.networks.critics import Returns, ScalarReturn
from common.agents.networks.distributional_critics import (
    CategoricalReturn,
    QuantileReturn,
    least_distribution,
    least_quantiles,
)
from common.errors import ConfigError
from common.settings import Settings, validate

ATOMS = np.linspace(-2, 2, 5)
FIVE = CategoricalReturn(v_min=-2, v_max=2, n_atoms=5)


def logits(n: int = 2, batch: int = 6, outputs: int = 5) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(size=(n, batch, outputs)).astype(np.float32))


def softmax(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    shares: np.ndarray[Any, Any] = np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)
    return shares


def test_a_categorical_critics_value_is_the_mean_of_its_distribution() -> None:
    outputs = logits()
    np.testing.assert_allclose(FIVE.value(outputs), softmax(outputs.numpy()) @ ATOMS, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("least", [True, False])
def test_categorical_critics_learn_the_projected_distribution_of_what_follows(least: bool) -> None:
    """Against the projection and the cross-entropy written out, with a reward, a discount and a cost."""
    outputs, following = logits(), logits(batch=6).flip(0) * 2
    reward, cost = np.linspace(-1, 1, 6), np.linspace(0, 0.5, 6)
    said = FIVE.following(following, least=least)
    values = torch.from_numpy(reward) + 0.9 * (said.values - torch.from_numpy(cost))
    target = Returns(values.float(), said.probability)
    probability, next_probability = softmax(outputs.numpy()), softmax(following.numpy())
    total, means = 0.0, np.zeros((2, 6))
    for n in range(2):
        for item in range(6):
            source = int((next_probability[:, item] @ ATOMS).argmin()) if least else n
            projected = np.zeros(5)
            for p, z in zip(next_probability[source, item], ATOMS, strict=True):
                shifted = min(max(reward[item] + 0.9 * (z - cost[item]), -2.0), 2.0)
                projected += p * np.clip(1 - np.abs(shifted - ATOMS), 0, 1)
            total -= (projected * np.log(probability[n, item])).sum()
            means[n, item] = projected @ ATOMS
    assert FIVE.loss(outputs, target, "mse", None).item() == pytest.approx(total / 12, rel=1e-5)
    expected = FIVE.expected(target).numpy()
    np.testing.assert_allclose(np.broadcast_to(expected, (2, 6)), means, rtol=1e-5, atol=1e-5)


def test_quantile_critics_learn_the_truncated_mixture() -> None:
    learnt = QuantileReturn(n_quantiles=4, n_dropped=1)
    outputs, following = logits(outputs=4), logits(outputs=4).flip(1)
    said = learnt.following(following, least=True)
    assert said.values.shape == (6, 6)
    target = Returns(said.values + 1)
    found = learnt.loss(outputs, target, "mse", None).item()
    losses = []
    for n in range(2):
        for item in range(6):
            one = 0.0
            for i, quantile in enumerate(outputs[n, item].tolist()):
                errors = [goal - quantile for goal in target.values[:, item].tolist()]
                huber = [0.5 * e * e if abs(e) <= 1 else abs(e) - 0.5 for e in errors]
                one += sum(abs((i + 0.5) / 4 - (e < 0)) * h for e, h in zip(errors, huber, strict=True)) / len(errors)
            losses.append(one)
    assert found == pytest.approx(float(np.mean(losses)), rel=1e-5)
    np.testing.assert_allclose(learnt.expected(target), target.values.numpy().mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(learnt.value(outputs), outputs.numpy().mean(axis=2), rtol=1e-6)


@pytest.mark.parametrize("learnt", [ScalarReturn(), FIVE, QuantileReturn(n_quantiles=5, n_dropped=1)])
def test_weights_scale_the_loss_of_each_item(learnt: ScalarReturn | CategoricalReturn | QuantileReturn) -> None:
    outputs = logits(outputs=learnt.n_outputs)
    target = learnt.following(outputs.flip(1), least=True)
    first = torch.tensor([1.0] + [0.0] * 5)
    alone = learnt.loss(outputs[:, :1], Returns(*_of_first(target)), "mse", None)
    assert learnt.loss(outputs, target, "mse", first).item() == pytest.approx(alone.item() / 6, rel=1e-5)


def _of_first(target: Returns) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The target of the first item alone."""
    values = target.values if target.probability is not None else target.values[..., :1]
    return values, None if target.probability is None else target.probability[..., :1, :]


@pytest.mark.parametrize(
    ("kind", "params", "message"),
    [
        (CategoricalReturn, {"v_min": 1, "v_max": 1}, r"v_min \(1.0\) must be below v_max \(1.0\)"),
        (CategoricalReturn, {"v_min": 0, "v_max": 1, "n_atoms": 1}, "n_atoms"),
        (QuantileReturn, {"n_quantiles": 3, "n_dropped": 3}, r"n_dropped \(3\) must be below n_quantiles \(3\)"),
    ],
)
def test_settings_that_mean_nothing_are_refused(kind: type[Settings], params: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(kind, params)


def test_each_item_takes_the_distribution_of_the_critic_whose_mean_is_least() -> None:
    rng = np.random.default_rng(0)
    probability, atoms = rng.dirichlet(np.ones(5), size=(3, 7)), np.linspace(-2, 2, 5)
    found = least_distribution(torch.from_numpy(probability), torch.from_numpy(atoms)).numpy()
    for item in range(7):
        means = [sum(p * z for p, z in zip(probability[n, item], atoms, strict=True)) for n in range(3)]
        np.testing.assert_array_equal(found[item], probability[int(np.argmin(means)), item])


@pytest.mark.parametrize("n_dropped", [0, 1, 3])
def test_the_greatest_quantiles_of_the_mixture_are_left_out(n_dropped: int) -> None:
    quantiles = np.random.default_rng(0).normal(size=(2, 6, 4))
    found = least_quantiles(torch.from_numpy(quantiles), n_dropped).numpy()
    assert found.shape == (2 * (4 - n_dropped), 6)
    for item in range(6):
        mixture = sorted(quantiles[:, item].ravel())
        np.testing.assert_array_equal(sorted(found[:, item]), mixture[: len(mixture) - 2 * n_dropped])
