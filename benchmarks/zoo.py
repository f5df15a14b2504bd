"""Settings of RL Baselines3 Zoo for stable-baselines3 and sbx (https://github.com/DLR-RM/rl-baselines3-zoo)."""

from __future__ import annotations

from typing import Any, Final

Settings = dict[str, Any]
CARTPOLE_DQN: Final[Settings] = {
    "algorithm": "DQN",
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1000,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
    "policy_kwargs": {"net_arch": [256, 256]},
}
"""Of CartPole, for 50,000 steps."""
DQN: Final[Settings] = {
    "algorithm": "DQN",
    "learning_rate": 6.3e-4,
    "batch_size": 128,
    "buffer_size": 50_000,
    "learning_starts": 0,
    "target_update_interval": 250,
    "train_freq": 4,
    "gradient_steps": -1,
    "exploration_fraction": 0.24,
    "exploration_final_eps": 0.1,
    "policy_kwargs": {"net_arch": [256, 256]},
}
"""Of Acrobot and LunarLander."""
PENDULUM_SAC: Final[Settings] = {
    "algorithm": "SAC",
    "learning_rate": 1e-3,
    "learning_starts": 1000,
    "buffer_size": 100_000,
}
MUJOCO_SAC: Final[Settings] = {
    "algorithm": "SAC",
    "learning_rate": 3e-4,
    "learning_starts": 10_000,
    "buffer_size": 1_000_000,
}
PENDULUM_CROSSQ: Final[Settings] = {
    "algorithm": "CrossQ",
    "policy_delay": 2,
    "buffer_size": 100_000,
    "policy_kwargs": {"net_arch": [256, 256]},
}
MUJOCO_CROSSQ: Final[Settings] = {
    "algorithm": "CrossQ",
    "learning_starts": 5000,
    "buffer_size": 1_000_000,
    "policy_kwargs": {"net_arch": {"pi": [256, 256], "qf": [512, 512]}},
}
"""With the critics of ``configs/crossq_halfcheetah.yaml``: the authors' are four times as wide."""
MINATAR_DQN: Final[Settings] = {
    "algorithm": "DQN",
    "minatar_network": True,
    "learning_rate": 2.5e-4,
    "batch_size": 32,
    "buffer_size": 100_000,
    "learning_starts": 5000,
    "target_update_interval": 1000,
    "train_freq": 1,
    "gradient_steps": 1,
    "exploration_fraction": 0.2,
    "exploration_final_eps": 0.1,
}
"""Of MinAtar's games, for 500,000 steps. The zoo has none, so these are the settings of ``configs/minatar_*.yaml``."""
MINATAR_A2C: Final[Settings] = {
    "algorithm": "A2C",
    "minatar_network": True,
    "learning_rate": 6e-4,
    "n_steps": 640,
    "gae_lambda": 1.0,
    "ent_coef": 0.01,
    "vf_coef": 0.25,
    "max_grad_norm": 40.0,
    "use_rms_prop": False,
}
"""The settings of ``configs/impala_minatar_breakout.yaml``; an update learns once from 640 steps of one environment."""
MINATAR_PPO: Final[Settings] = {"algorithm": "PPO", "minatar_network": True}
"""The package's own defaults; ten passes over every 2,048 steps."""
MINATAR_PPO_AS_OURS: Final[Settings] = MINATAR_PPO | {
    "n_envs": 16,
    "n_steps": 64,
    "batch_size": 128,
    "n_epochs": 4,
    "learning_rate": "lin_0.001",
    "clip_range": 0.1,
    "ent_coef": 0.01,
}
"""Those of ``configs/ppo_minatar_breakout.yaml``, to compare speeds at the same work."""
CARTPOLE_PPO: Final[Settings] = {
    "algorithm": "PPO",
    "n_envs": 8,
    "n_steps": 32,
    "batch_size": 256,
    "n_epochs": 20,
    "gamma": 0.98,
    "gae_lambda": 0.8,
    "learning_rate": "lin_0.001",
    "clip_range": "lin_0.2",
}
"""Of CartPole, for 100,000 steps."""
ACROBOT_PPO: Final[Settings] = {
    "algorithm": "PPO",
    "normalize": True,
    "n_envs": 16,
    "n_steps": 256,
    "n_epochs": 4,
    "gae_lambda": 0.94,
}
PENDULUM_PPO: Final[Settings] = {
    "algorithm": "PPO",
    "n_envs": 4,
    "n_steps": 1024,
    "n_epochs": 10,
    "gamma": 0.9,
    "learning_rate": 1e-3,
    "use_sde": True,
    "sde_sample_freq": 4,
}
"""Of Pendulum, for 100,000 steps."""
LUNARLANDER_PPO: Final[Settings] = {
    "algorithm": "PPO",
    "n_envs": 16,
    "n_steps": 1024,
    "batch_size": 64,
    "n_epochs": 4,
    "gamma": 0.999,
    "gae_lambda": 0.98,
    "ent_coef": 0.01,
}
"""Of LunarLander, for a million steps."""
CLEANRL_PPO: Final[Settings] = {
    "algorithm": "PPO",
    "normalize": True,
    "learning_rate": "lin_0.0003",
    "clip_range_vf": 0.2,
}
"""Not of the zoo, but of CleanRL's ppo_continuous_action: with the zoo's, HalfCheetah learns slowly at first."""
PETTINGZOO_PPO: Final[Settings] = {
    "algorithm": "PPO",
    "n_steps": 25,
    "batch_size": 150,
    "n_epochs": 10,
    "gamma": 0.95,
    "gae_lambda": 0.95,
    "ent_coef": 0.01,
    "learning_rate": "lin_0.001",
    "policy_kwargs": {"net_arch": [64, 64]},
}
"""Not of the zoo, but of ``configs/ppo_pettingzoo.yaml``; ``n_envs`` counts games."""
