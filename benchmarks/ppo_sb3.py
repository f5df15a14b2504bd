"""One opt step of PPO beside ``PPO.train`` of stable-baselines3, from the same weights and the same rollout.

    PYTHON -m benchmarks.ppo_sb3     # with crossborder[pettingzoo], mpe2, stable-baselines3 and supersuit

Both learn from one rollout of four CartPoles, and then of the agents of four games of simple_spread, which SuperSuit
brings together; in five epochs of one minibatch. The command writes the greatest difference of their advantages, and of
their parameters afterwards; and the greatest difference of what the agents see and earn here and with SuperSuit, for
the same seeds and actions.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.sb3 import make_env
from common.agents.ppo import PPO
from common.data import Array, Items
from common.envs.pettingzoo import make
from common.interfaces import EnvSpec
from crossborder.testing import ItemMemory

LENGTH, ENVS, EPOCHS = 64, 4, 5
SPREAD = "mpe2.simple_spread_v3:parallel_env"


def make_games() -> Any:
    """The agents of games of simple_spread as environments, by SuperSuit."""
    return make_env({"env": {"id": SPREAD}, "seed": 0}, {"n_envs": ENVS})


def collect(env: Any) -> Any:
    """PPO of stable-baselines3 with one rollout in its buffer.

    CartPole's limit of 500 steps cuts no episode there. Where a limit ends a game of simple_spread,
    stable-baselines3 adds the value behind it to the reward, so the game counts as ended.
    """
    peer = stable_baselines3.PPO(
        "MlpPolicy",
        env,
        n_steps=LENGTH,
        batch_size=LENGTH * env.num_envs,
        n_epochs=EPOCHS,
        seed=0,
        device="cpu",
    )
    _, callback = peer._setup_learn(LENGTH * env.num_envs)
    peer.collect_rollouts(peer.env, callback, peer.rollout_buffer, LENGTH)
    return peer


def rollout_of(peer: Any) -> Items:
    """The rollout in the buffer of stable-baselines3 as the view ``Rollouts`` gives it."""
    buffer = peer.rollout_buffer
    obs = np.concatenate([buffer.observations, peer._last_obs[None]]).swapaxes(0, 1)
    begins = np.concatenate([buffer.episode_starts, peer._last_episode_starts[None]]).swapaxes(0, 1) > 0
    columns: dict[str, Array] = {"action": buffer.actions[..., 0].astype(np.int64), "reward": buffer.rewards}
    columns |= {"log_prob": buffer.log_probs, "version": np.zeros(buffer.rewards.shape, np.int64)}
    return {
        "obs": obs[:, :-1].copy(),
        "next_obs": obs[:, 1:].copy(),
        "terminated": begins[:, 1:].copy(),
        "truncated": np.zeros(buffer.rewards.T.shape, np.bool_),
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


def compare_opts(name: str, env: Any) -> str:
    """Take an opt step with both, and return how they differ."""
    peer = collect(env)
    agent = PPO(
        EnvSpec(env.observation_space, env.action_space),
        seed=0,
        batch_size=env.num_envs,
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
    text = "{}: advantages differ by at most {:.1e}, parameters by {:.1e}; they moved by up to {:.1e}\n"
    return text.format(name, gap, differ, moved)


def compare_games(steps: int = 1000) -> str:
    """Take random actions in both forms of the same games, and return how far apart they are."""
    theirs, mine = make_games().venv, make(SPREAD, groups=ENVS, show_seat=True)
    seen, (obs, _) = theirs.reset(seed=0)[0], mine.reset(seed=0)
    rng, gap, ends = np.random.default_rng(0), 0.0, 0
    for _ in range(steps):
        shown = np.concatenate([obs["observation"], np.eye(3)[obs["seat"]]], axis=1)
        gap = max(gap, float(np.abs(shown - seen).max()))
        actions = rng.integers(5, size=mine.num_envs)
        obs, rewards, terminated, truncated, _ = mine.step(actions)
        seen, earned, *_ = theirs.step(actions)
        gap = max(gap, float(np.abs(rewards.astype(np.float32) - earned).max()))
        if (terminated | truncated).all():
            ends += 1
            obs, _ = mine.reset(options={"reset_mask": truncated})
    return f"simple_spread: what agents see and earn differs by at most {gap:.1e} in {steps} steps and {ends} ends\n"


def main() -> None:
    """Compare, and print the differences."""
    sys.stdout.write(compare_opts("CartPole", make_vec_env("CartPole-v1", ENVS, seed=0)))
    sys.stdout.write(compare_opts("simple_spread", make_games()))
    sys.stdout.write(compare_games())


if __name__ == "__main__":
    main()
