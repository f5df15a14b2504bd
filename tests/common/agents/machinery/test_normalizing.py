from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from gymnasium import spaces

from common.agents.machinery.normalizing import NormalizeBatch
from common.agents.networks.normalization import Normalizer, build_normalizer
from common.config.run_config import RunConfig
from common.errors import ConfigError
from common.settings import validate
from learner.loop.in_turns import train_in_turns
from learner.loop.server import train_async

BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)


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


# A real run: observations of other units, and rewards of another size.


def run_config(run_dir: Path, **more: Any) -> RunConfig:
    values = {
        "run_dir": str(run_dir),
        "env": {
            "target": "gymnasium:make",
            "params": {"id": "CartPole-v1"},
            "wrappers": [{"target": "common.envs.wrappers:discounted_return", "params": {"discount_factor": 0.9}}],
            "info": {"discounted_return": "float32"},
        },
        "agent": {
            "target": "common.agents.dqn:DQN",
            "params": {
                "units": [8],
                "batch_size": 16,
                "discount_factor": 0.9,
                "normalize_observations": True,
                "normalize_rewards": True,
            },
        },
        "replay": {"capacity": 1000},
        "trainer": {"max_opts": 60, "warmup_period": 50, "eval_interval": 30, "record_interval": 20},
        "evaluator": {"episodes": 1},
        "server": {"listen": "127.0.0.1:0", "grace_seconds": 0.5},
        "metrics": {"trainer_port": 0, "ingest_port": 0},
    }
    return validate(RunConfig, values | more)


def saved_statistics(path: Path) -> dict[str, torch.Tensor]:
    params = safetensors.torch.load_file(path / "model.safetensors")
    return {name: value for name, value in params.items() if name.startswith("normalizer.")}


def test_the_statistics_of_a_run_are_those_of_the_rows_that_it_drew(tmp_path: Path) -> None:
    result = train_in_turns(run_config(tmp_path / "run"))
    found = saved_statistics(result.run_dir / "final")
    assert found["normalizer.count"] == 60 * 16
    returns = [sum(0.9**i for i in range(k)) for k in range(1, 21)]  # CartPole pays 1 a step; about 20 steps at first.
    assert found["normalizer.return_mean"].item() == pytest.approx(np.mean(returns), rel=0.3)
    assert found["normalizer.return_var"].item() == pytest.approx(np.var(returns), rel=0.6)


def test_actors_act_and_give_first_priorities_by_the_statistics_of_the_learner(tmp_path: Path) -> None:
    replay, push = {"capacity": 1000, "prioritized": {}}, {"initial_priorities": True, "n_buffer": 8}
    result = train_async(run_config(tmp_path / "run", replay=replay, push=push), 1)
    assert result.opt_steps == 60
    assert saved_statistics(result.run_dir / "final")["normalizer.count"] == 60 * 16


def test_a_run_whose_rows_lack_the_return_is_refused_by_name(tmp_path: Path) -> None:
    config = run_config(tmp_path / "run")
    env = config.env.model_copy(update={"info": {}})
    with pytest.raises(ConfigError, match=r"agent\.params\.normalize_rewards: needs a column info/discounted_return"):
        train_in_turns(config.model_copy(update={"env": env}))
