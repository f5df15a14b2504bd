"""One opt step of PPO beside ``PPO.train`` of stable-baselines3, from the same weights and the same rollout.

    PYTHON -m benchmarks.ppo_sb3     # an interpreter with crossborder and stable-baselines3

Both learn from one rollout of CartPole by four environments, in five epochs of one minibatch. The command writes the
greatest difference of their advantages, and of their parameters afterwards.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.env_util import make_vec_env

from common.agents.ppo import PPO
from common.data import Array, Items
from common.interfaces import EnvSpec
from crossborder.testing import ItemMemory

LENGTH, ENVS, EPOCHS = 64, 4, 5


def collect() -> Any:
    """PPO of stable-baselines3 with one rollout in its buffer; CartPole's limit of 500 steps cuts no episode there."""
    peer = stable_baselines3.PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", ENVS, seed=0),
        n_steps=LENGTH,
        batch_size=LENGTH * ENVS,
        n_epochs=EPOCHS,
        seed=0,
        device="cpu",
    )
    _, callback = peer._setup_learn(LENGTH * ENVS)
    peer.collect_rollouts(peer.env, callback, peer.rollout_buffer, LENGTH)
    return peer


def rollout_of(peer: Any) -> Items:
    """The rollout in the buffer of stable-baselines3 as the view ``Rollouts`` gives it."""
    buffer = peer.rollout_buffer
    obs = np.concatenate([buffer.observations, peer._last_obs[None]]).swapaxes(0, 1)
    begins = np.concatenate([buffer.episode_starts, peer._last_episode_starts[None]]).swapaxes(0, 1) > 0
    columns: dict[str, Array] = {"action": buffer.actions[..., 0].astype(np.int64), "reward": buffer.rewards}
    columns |= {"log_prob": buffer.log_probs, "version": np.zeros((LENGTH, ENVS), np.int64)}
    return {
        "obs": obs[:, :-1].copy(),
        "next_obs": obs[:, 1:].copy(),
        "terminated": begins[:, 1:].copy(),
        "truncated": np.zeros((ENVS, LENGTH), np.bool_),
        **{name: column.swapaxes(0, 1).copy() for name, column in columns.items()},
    }


class OneBatch(ItemMemory):
    """Gives all of its items in each batch."""

    def batch(self, size: int) -> Items:  # noqa: ARG002 - it has one size
        return self._items


def parameters_of(peer: Any) -> list[torch.Tensor]:
    """The parameters of the peer's policy and of its values, in the order of ours."""
    of, extractor = peer.policy, peer.policy.mlp_extractor
    nets = (extractor.policy_net, of.action_net, extractor.value_net, of.value_net)
    return [parameter for net in nets for parameter in net.parameters()]


def main() -> None:
    """Compare, and print the differences."""
    peer = collect()
    env = peer.env
    agent = PPO(
        EnvSpec(env.observation_space, env.action_space),
        seed=0,
        batch_size=ENVS,
        epochs=EPOCHS,
        minibatches=1,
        optimizer={"eps": 1e-5},
    )
    with torch.no_grad():
        for mine, theirs in zip(agent.policy_net.parameters(), parameters_of(peer), strict=True):
            mine.copy_(theirs)
    items = rollout_of(peer)
    prepared = agent._prepare({name: torch.from_numpy(column) for name, column in items.items()})
    gap = np.abs(prepared["advantage"].numpy() - peer.rollout_buffer.advantages.swapaxes(0, 1)).max()
    before = [parameter.detach().clone() for parameter in agent.policy_net.parameters()]
    agent.opt(OneBatch(items))
    peer.train()
    pairs = list(zip(agent.policy_net.parameters(), parameters_of(peer), before, strict=True))
    differ = max(float((mine - theirs).detach().abs().max()) for mine, theirs, _ in pairs)
    moved = max(float((mine - first).detach().abs().max()) for mine, _, first in pairs)
    text = "advantages differ by at most {:.1e}, parameters by {:.1e}; they moved by up to {:.1e}\n"
    sys.stdout.write(text.format(gap, differ, moved))


if __name__ == "__main__":
    main()
