from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from common.agents.networks.normalization import RETURN, NormalizeBatch, Normalizer, build_normalizer
from common.errors import ConfigError

BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)
LEAVES: dict[str, spaces.Space[Any]] = {
    "arm/joints": spaces.Box(-1, 1, (3,), np.float32),
    "camera": spaces.Box(0, 255, (8, 8), np.uint8),
    "gear": spaces.Discrete(3),
    "speed": spaces.Box(-1, 1, (), np.float64),
}


def rows(n: int, seed: int = 0) -> torch.Tensor:
    return 100 + 3 * torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))


def test_before_the_first_batch_observations_stay_as_they_are() -> None:
    torch.testing.assert_close(Normalizer({"": BOX})(torch.tensor([[3.0, -4.0]])), torch.tensor([[3.0, -4.0]]))


def test_batches_of_any_sizes_leave_the_mean_and_the_variance_of_all_rows() -> None:
    normalizer, seen = Normalizer({"": BOX}), [rows(n, seed=n) * n for n in (1, 7, 2, 50)]
    for batch in seen:
        normalizer.merge({"obs": batch})
    every = torch.cat(seen).double().numpy()
    np.testing.assert_allclose(normalizer.get_buffer("mean"), every.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(normalizer.get_buffer("var"), every.var(axis=0), rtol=1e-4)
    assert normalizer.count.item() == 60


def test_the_variance_of_large_numbers_is_exact_after_thousands_of_batches() -> None:
    normalizer = Normalizer({"": BOX})
    for seed in range(3000):
        normalizer.merge({"obs": 1e4 + torch.randn(16, 2, generator=torch.Generator().manual_seed(seed))})
    np.testing.assert_allclose(normalizer.get_buffer("var"), 1.0, rtol=0.05)


def test_normalised_rows_have_mean_0_and_variance_1() -> None:
    normalizer, batch = Normalizer({"": BOX}), rows(1000)
    normalizer.merge({"obs": batch})
    found = normalizer(batch)
    torch.testing.assert_close(found.mean(dim=0), torch.zeros(2), atol=1e-4, rtol=0)
    torch.testing.assert_close(found.var(dim=0, correction=0), torch.ones(2), atol=1e-3, rtol=0)


def test_only_merging_changes_the_statistics_and_only_by_observations_not_by_the_next_ones() -> None:
    normalizer = Normalizer({"": BOX}).train()
    normalizer(rows(5))
    normalizer.normalize({"obs": rows(5), "next_obs": rows(5)})
    assert normalizer.count.item() == 0
    normalizer.merge({"obs": torch.zeros(4, 2), "next_obs": torch.full((4, 2), 9.0)})
    assert normalizer.get_buffer("mean").tolist() == [0.0, 0.0]


def test_an_element_that_never_changes_becomes_0_and_a_rare_one_is_clipped() -> None:
    normalizer = Normalizer({"": BOX})
    normalizer.merge({"obs": torch.tensor([[7.0, 1.0], [7.0, -1.0]])})
    assert normalizer(torch.tensor([[7.0, 1e6], [7.0, -1e6]])).tolist() == [[0.0, 10.0], [0.0, -10.0]]


def test_floats_of_structured_observations_are_normalised_and_other_leaves_stay() -> None:
    normalizer = Normalizer(LEAVES)
    batch = {
        "obs/arm/joints": torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]),
        "obs/camera": torch.zeros(2, 8, 8, dtype=torch.uint8),
        "obs/gear": torch.tensor([0, 2]),
        "obs/speed": torch.tensor([1.0, 5.0], dtype=torch.float64),
        "next_obs/speed": torch.tensor([3.0, 7.0], dtype=torch.float64),
        "reward": torch.ones(2),
    }
    normalizer.merge(batch)
    found = normalizer.normalize(batch)
    assert normalizer.columns == {"obs/arm/joints", "next_obs/arm/joints", "obs/speed", "next_obs/speed", "mask"}
    assert found["obs/speed"].tolist() == pytest.approx([-1.0, 1.0])
    assert found["next_obs/speed"].tolist() == pytest.approx([0.0, 2.0])
    assert found["obs/arm/joints"].tolist() == [pytest.approx([-1.0, 0.0, 1.0]), pytest.approx([1.0, 0.0, -1.0])]
    assert all(found[name] is batch[name] for name in ("obs/camera", "obs/gear", "reward"))
    acting = normalizer({"speed": batch["obs/speed"], "gear": batch["obs/gear"]})
    assert acting["speed"].tolist() == pytest.approx([-1.0, 1.0])
    assert acting["gear"] is batch["obs/gear"]


def test_an_element_that_never_changes_becomes_0_in_sequences_too() -> None:
    normalizer, mask = build_normalizer({"": BOX}, enabled=True, rewards=False), torch.ones(32, 40, dtype=torch.bool)
    mask[7, 5:] = False
    constant = torch.tensor([100.3, 1000.7]).expand(32, 41, 2)
    normalizer.merge({"obs": constant, "mask": mask})
    assert torch.equal(normalizer(constant), torch.zeros(32, 41, 2))


def test_sequences_are_merged_step_by_step() -> None:
    flat, timed = Normalizer({"": BOX}), Normalizer({"": BOX})
    flat.merge({"obs": rows(12)})
    timed.merge({"obs": rows(12).view(3, 4, 2)})
    for name, value in flat.state_dict().items():
        torch.testing.assert_close(timed.state_dict()[name], value)
    torch.testing.assert_close(timed(rows(12).view(3, 4, 2)), flat(rows(12)).view(3, 4, 2))


def test_places_of_a_sequence_after_the_end_of_its_episode_do_not_count() -> None:
    normalizer = build_normalizer({"": BOX}, enabled=True, rewards=True)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    seen, returns = [], torch.tensor([[1.0, 2.0, 3.0], [5.0, 99.0, 99.0]])
    for seed in range(3):
        obs = rows(8, seed).view(2, 4, 2) * (seed + 1)
        obs[1, 2:] = obs[1, 1]  # The last observation is repeated.
        normalizer.merge({"obs": obs, "reward": torch.ones(2, 3), RETURN: returns, "mask": mask})
        seen += [obs[0], obs[1, :2]]
    every = torch.cat(seen)
    torch.testing.assert_close(normalizer.get_buffer("mean"), every.mean(dim=0))
    torch.testing.assert_close(normalizer.get_buffer("var"), every.var(dim=0, correction=0))
    assert normalizer.return_mean.item() == pytest.approx(np.mean([1, 2, 3, 5]))
    assert normalizer.return_var.item() == pytest.approx(np.var([1, 2, 3, 5]))


def test_the_last_observation_of_an_episode_counts_where_the_sequence_goes_on_in_the_next_one() -> None:
    normalizer, obs = Normalizer({"": BOX}), rows(5)[None]
    normalizer.merge({"obs": obs, "mask": torch.tensor([[True, False, True, True]])})
    torch.testing.assert_close(normalizer.get_buffer("mean"), obs[0].mean(dim=0))
    assert normalizer.count.item() == 5


def test_one_that_is_not_enabled_has_no_tensors_and_changes_nothing() -> None:
    normalizer, batch = build_normalizer({"": BOX}, enabled=False), {"obs": rows(3)}
    assert not normalizer.state_dict()
    normalizer.merge(batch)
    assert normalizer.normalize(batch)["obs"] is batch["obs"]
    assert normalizer(batch["obs"]) is batch["obs"]


def test_observations_without_floats_cannot_be_normalised() -> None:
    expected = "agent.params.normalize_observations: expected observations of floats, found Discrete(3)"
    with pytest.raises(ConfigError, match=re.escape(expected)):
        build_normalizer({"": spaces.Discrete(3)}, enabled=True)


# Rewards.


def test_rewards_are_divided_by_the_deviation_of_the_return_so_far() -> None:
    normalizer, generator = build_normalizer({"": BOX}, enabled=False, rewards=True), torch.Generator().manual_seed(0)
    seen = []
    for n in (3, 40, 7):
        returns = 50 + 20 * torch.randn(n, generator=generator)
        normalizer.merge({"obs": rows(n), "reward": torch.ones(n), RETURN: returns})
        seen += returns.tolist()
    reward = torch.tensor([0.0, 2.0, -5.0, 1e6])
    batch = {"obs": rows(4), "reward": reward, RETURN: torch.zeros(4)}
    found = normalizer.normalize(batch)
    np.testing.assert_allclose(found["reward"], np.clip(reward.numpy() / np.std(seen), -10, 10), rtol=1e-5)
    assert found["obs"] is batch["obs"]
    assert set(normalizer.state_dict()) == {"return_mean", "return_var", "return_count"}


@pytest.mark.parametrize("deviation", [20.0, 2.0])
def test_rewards_are_divided_by_more_where_a_return_would_be_larger_than_the_greatest_allowed(deviation: float) -> None:
    normalizer = build_normalizer({"": BOX}, enabled=False, rewards=True, max_return=5.0)
    reward, generator, seen = torch.tensor([0.0, 2.0, -5.0]), torch.Generator().manual_seed(0), list[float]()
    for n in (3, 40, 7):
        returns = -50 + deviation * torch.randn(n, generator=generator)
        normalizer.merge({"obs": rows(n), "reward": torch.ones(n), RETURN: returns})
        seen += returns.tolist()
        divisor = max(float(np.std(seen)), float(np.abs(seen).max()) / 5)  # The deviation, then the greatest size.
        found = normalizer.normalize({"obs": rows(3), "reward": reward, RETURN: torch.zeros(3)})
        np.testing.assert_allclose(found["reward"], reward / divisor, rtol=1e-5)
    assert (np.std(seen) > np.abs(seen).max() / 5) == (deviation == 20.0)


def test_the_greatest_return_is_not_that_of_places_after_the_end_of_an_episode() -> None:
    normalizer = build_normalizer({"": BOX}, enabled=False, rewards=True, max_return=5.0)
    returns, mask = torch.tensor([[1.0, 3.0], [-4.0, 70.0]]), torch.tensor([[True, True], [True, False]])
    normalizer.merge({"reward": returns, RETURN: returns, "mask": mask})
    assert normalizer.greatest_return.item() == 4.0


def test_observations_and_rewards_are_normalised_together() -> None:
    normalizer = build_normalizer({"": BOX}, enabled=True, rewards=True)
    batch = {"obs": rows(8), "next_obs": rows(8), "reward": torch.ones(8), RETURN: torch.arange(8.0)}
    normalizer.merge(batch)
    assert normalizer.columns == {"obs", "next_obs", "reward", RETURN, "mask"}
    assert normalizer.normalize(batch)["reward"].tolist() == pytest.approx([1 / np.std(np.arange(8))] * 8)
    assert normalizer.count.item() == 8


def test_a_batch_without_returns_is_refused_and_the_message_says_what_to_configure() -> None:
    normalizer = build_normalizer({"": BOX}, enabled=False, rewards=True)
    with pytest.raises(ConfigError, match=r"add discounted_return to env\.wrappers"):
        normalizer.merge({"obs": rows(4), "reward": torch.ones(4)})


# A batch.


def batches(n: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        {"obs": torch.randn(4, 2, generator=generator), "next_obs": torch.ones(4, 2), "reward": torch.ones(4)}
        for _ in range(n)
    ]


def test_each_batch_is_merged_before_it_is_normalised() -> None:
    normalizer = Normalizer({"": BOX})
    for batch in batches(3):
        found = NormalizeBatch(normalizer)(batch)
        assert torch.equal(found["obs"], normalizer(batch["obs"]))
        assert torch.equal(found["next_obs"], normalizer(batch["next_obs"]))
        assert found["reward"] is batch["reward"]
    assert normalizer.count.item() == 12


def test_captured_statistics_are_the_eager_ones_bit_for_bit() -> None:
    normalizers = Normalizer({"": BOX}), Normalizer({"": BOX})
    captured, eager = (NormalizeBatch(each, captured=i == 0) for i, each in enumerate(normalizers))
    for batch in batches(6):
        assert torch.equal(captured(batch)["obs"], eager(batch)["obs"])
    for name, value in normalizers[0].state_dict().items():
        assert torch.equal(value, normalizers[1].state_dict()[name])


def test_captured_statistics_of_sequences_are_the_eager_ones_bit_for_bit() -> None:
    normalizers = Normalizer({"": BOX}), Normalizer({"": BOX})
    captured, eager = (NormalizeBatch(each, captured=i == 0) for i, each in enumerate(normalizers))
    generator = torch.Generator().manual_seed(0)
    for _ in range(6):
        obs = torch.randn(4, 6, 2, generator=generator)
        batch = {"obs": obs, "mask": torch.arange(5) < torch.randint(1, 6, (4, 1), generator=generator)}
        assert torch.equal(captured(batch)["obs"], eager(batch)["obs"])
    for name, value in normalizers[0].state_dict().items():
        assert torch.equal(value, normalizers[1].state_dict()[name])


def test_one_that_is_not_enabled_leaves_batches_alone() -> None:
    batch = batches(1)[0]
    assert NormalizeBatch(build_normalizer({"": BOX}, enabled=False), captured=True)(batch) == batch
