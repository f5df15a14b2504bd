"""PPO: an actor-critic that learns several times from the steps of its latest policy (arXiv:1707.06347).

The ratio that is clipped is that of the policy that is learnt to the policy that acted, whose log-probabilities actors
record. In training in turns that policy is the one with which the opt step begins, so this is PPO of the paper. With
actors it is a little older. The clipping then bounds how far the policy moves from the one that took the steps, and
advantages are generalised advantages (arXiv:1506.02438) of that policy.

The decoupled objective (arXiv:2110.00641) clips the ratio to the policy at the beginning of an opt step instead, and
weighs each step by the ratio of that policy to the one that acted. In CartPole it learnt less from actors that lagged
by ten opt steps and more, with advantages by V-trace and without: docs/results.md, "Policy lag with PPO".
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import nn

from common.agents import agent_settings
from common.agents.averaging import average, total
from common.agents.losses.sequence_losses import generalized_advantages, masked_loss, masked_mean
from common.agents.machinery.gradient_step import Batch, draw
from common.agents.machinery.optimizers import ScheduleConfig
from common.agents.machinery.update import Results, Update
from common.agents.networks.encoders import LeafSpaces, select_leaves
from common.agents.networks.layers import Activation, flatten_time
from common.agents.networks.policies import PolicyAndBaseline, PolicyBesideBaseline, make_orthogonal
from common.agents.policy_gradient import CHOICE, LOG_PROB, PolicyGradientAgent, PolicyGradientConfig
from common.config.replay_config import Unit
from common.data import Record
from common.errors import ConfigError
from common.interfaces import EnvSpec, ReplayBuffer
from common.plugins.part_config import PluginConfig
from common.spaces import from_columns

MAX_LOG_RATIO: Final = 20.0
"""Where the policy is further from the one that acted, losses and records stay finite, and a step teaches nothing."""


class PPOConfig(PolicyGradientConfig):
    """``agent.params`` of ``PPO``."""

    units: tuple[PositiveInt, ...] = Field((64, 64), description="The width of each hidden layer of each network.")
    activation: Activation = Field(
        "tanh", description="The activation of the layers of units: relu, elu, gelu, leaky_relu, silu or tanh."
    )
    network: PluginConfig | None = Field(
        None,
        description="Your own network for policy and baseline, called with in_shape, out_dim and params; it is built "
        "twice unless they share it. null: networks with the layers of units, above convolutions for each picture.",
    )
    actor_keys: agent_settings.ActorKeys = None
    critic_keys: agent_settings.CriticKeys = None
    share_layers: bool = Field(
        False, description="Whether policy and baseline are one network that parts in its last layer only."
    )
    batch_size: PositiveInt = Field(
        8, description="The number of rollouts in one opt step; in training in turns that of the environments."
    )
    epochs: PositiveInt = Field(4, description="The number of times that an opt step learns from each step.")
    minibatches: PositiveInt = Field(
        4, description="The number of gradient steps in an epoch, each from an equal share of the steps."
    )
    gae_lambda: Unit = Field(
        0.95, description="Lambda: the weight of a later error in an advantage is multiplied by it for each step."
    )
    clip_range: PositiveFloat = Field(
        0.2,
        description="How far the ratio of an action's probability to that under the policy that acted may be from 1 "
        "(PPO's epsilon).",
    )
    clip_schedule: ScheduleConfig | None = Field(
        None, description="The schedule of clip_range, counted in gradient steps; null: it is constant."
    )
    clip_range_values: PositiveFloat | None = Field(
        None, description="How far a value may move in an opt step before its loss stops counting; null: no limit."
    )
    target_kl: PositiveFloat | None = Field(
        None,
        description="An opt step ends after the epoch in which the mean KL divergence from the policy that acted is "
        "larger than this; null: it has all epochs.",
    )
    normalize_advantages: bool = Field(
        True, description="Whether the advantages of each minibatch are scaled to mean 0 and variance 1."
    )
    baseline_cost: PositiveFloat = Field(
        1.0, description="The weight of the baseline's loss, half the mean squared error; the policy's loss has 1."
    )
    entropy_cost: NonNegativeFloat = Field(0.0, description="The weight of the policy's entropy, which is rewarded.")
    max_lag: NonNegativeInt | None = Field(
        None,
        description="The greatest policy lag, in opt steps, of steps from which the agent learns; older steps are left "
        "out. null: none is.",
    )
    max_grad_norm: agent_settings.GradNormLimit = 0.5
    lr: agent_settings.LearningRate = 3e-4

    @model_validator(mode="after")
    def _keys_fit(self) -> PPOConfig:
        if self.share_layers:
            self.refuse_beside("share_layers: true", "actor_keys", "critic_keys", reason="shared layers see the same")
        return self

    @model_validator(mode="after")
    def _activation_fits(self) -> PPOConfig:
        if self.network is not None and not self.units_above_network:
            self.refuse_beside("network", "activation", reason="a network has its own activations")
        return self


class PPO(PolicyGradientAgent):
    """A policy and a baseline, learnt in several epochs of minibatches from rollouts, each of which is drawn once.

    The replay is a queue (``learner.replay.queue:QueueReplay``) of ``learner.views.rollouts:Rollouts``. For arguments
    and errors see ``PolicyGradientAgent``.
    """

    Config = PPOConfig
    config: PPOConfig
    counters = ("_opt_steps", "_gradient_steps")
    merges_first: ClassVar = False  # The learner sees the numbers that the policy saw.
    parts: ClassVar = "steps"
    """Of what an epoch's minibatches have equal shares."""

    def __init__(self, spec: EnvSpec, **given: Any) -> None:
        super().__init__(spec, **given)
        self._prepare = Update(self._prepare_from, {}, captured=self._captured)
        self._learn = Update(self._learn_from, self.nets, captured=self._captured)
        self._gradient_steps = 0

    def _build_policy(self, leaves: LeafSpaces) -> nn.Module:
        if self.config.share_layers:
            net = self._build_net(leaves, self.actions.n_outputs + 1, 0.01, 1.0)
            return PolicyAndBaseline(net, self.actions, self.allowed)
        policy = self._build_net(self._leaves_of(leaves, "actor_keys"), self.actions.n_outputs, 0.01)
        baseline = self._build_net(self._leaves_of(leaves, "critic_keys"), 1, 1.0)
        return PolicyBesideBaseline(policy, baseline, self.actions, self.allowed)

    def _leaves_of(self, leaves: LeafSpaces, setting: str) -> LeafSpaces:
        """Those of the leaves that a setting names."""
        keys: tuple[str, ...] | None = getattr(self.config, setting)
        named = select_leaves(self._spec.observation_space, keys, f"agent.params.{setting}")
        found = {path: leaf for path, leaf in leaves.items() if path in named}
        if not found:
            raise ConfigError(
                f"agent.params.{setting}: expected parts beside the mask of actions, which networks do not see, found "
                f"{list(keys or ())}"
            )
        return found

    def _build_net(self, leaves: LeafSpaces, out_dim: int, *gains: float) -> nn.Module:
        """Make a network from observations to ``[B, out_dim]``; its last layer has these gains if it is no user's."""
        net = self.config.build(leaves, out_dim, self.config.activation)
        if not self.config.has_own_network():
            make_orthogonal(net, *gains)
        return net

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        left_out = torch.zeros((), device=self.device)
        for _ in range(len(buffer)):  # The steps that actors took while the learner was busy may fill several batches.
            batch = draw(buffer, self.config.batch_size, self.device)
            self._require_rollouts(batch)
            age = self._opt_steps - batch["version"].float()
            is_used, is_all_old = self._select(age)
            left_out += (~is_used).float().sum()
            if not is_all_old:
                break
        else:
            return None
        steps = {**self._prepare(self._normalize(batch)), "is_used": is_used}
        ratio_mean, version_age = masked_mean(steps.pop("ratio"), is_used), masked_mean(age, is_used)
        results = self._take_epochs({name: self._part(column) for name, column in steps.items()})
        self._opt_steps += 1
        return {**results, "ratio_mean": ratio_mean, "version_age": version_age, "left_out": left_out}

    def _select(self, age: torch.Tensor) -> tuple[torch.Tensor, bool]:
        """Which steps of these ages ``[B, L]`` are learnt from, and whether no rank has such a step."""
        if self.config.max_lag is None:
            return torch.ones_like(age, dtype=torch.bool), False
        is_used = age <= self.config.max_lag
        return is_used, not bool(average(is_used.float().mean()))

    def _require_rollouts(self, batch: Batch) -> None:
        """Check the columns and the number of steps of a batch."""
        agent, names = type(self).__name__, ", ".join(sorted(batch))
        if "mask" in batch or batch["reward"].dim() != 2:
            raise ConfigError(
                f"replay.view: {agent} learns from rollouts; set target: Rollouts, with a "
                f"length; found the columns {names}"
            )
        missing = {column.name for column in self.extra_columns()} - batch.keys()
        if missing:
            raise ConfigError(
                f"replay: {agent} needs the columns {', '.join(sorted(missing))}, which its actors record beside each "
                f"action; it cannot learn from rows of another agent; found the columns {names}"
            )
        if "weight" in batch:
            raise ConfigError(
                f"replay: {agent} does not weigh steps, found a column weight: remove what adds it, such as "
                "replay.half_age; agent.params.max_lag leaves old steps out"
            )
        n, minibatches = len(self._part(batch["reward"])), self.config.minibatches
        if n % minibatches:
            raise ConfigError(
                f"agent.params.minibatches: expected a number that divides the {n} {self.parts} of a batch "
                f"({' x '.join(map(str, batch['reward'].shape))}: batch_size and the length of rollouts), "
                f"found {minibatches}"
            )

    def _part(self, column: torch.Tensor) -> torch.Tensor:
        """A column of B rollouts of L steps ``[B, L, …]`` as one of the n parts of which minibatches are made."""
        return column.flatten(0, 1)

    @torch.no_grad()
    def _prepare_from(self, batch: Batch) -> Results:
        """What the policy at the beginning of an opt step says about B rollouts of L steps, ``[B, L, …]``."""
        config, shape = self.config, batch["reward"].shape
        outputs, value, next_value = self._evaluate_batch(batch)
        choice = self._choice(batch)
        log_prob = self.actions.log_prob(outputs, choice).view(shape)
        ratio = (log_prob - batch[LOG_PROB.name]).exp().clamp(max=1.0)
        goes_on = ~(batch["terminated"] | batch["truncated"])
        goes_on[:, -1] = False
        value = value.view(shape)
        advantage = generalized_advantages(
            batch["reward"] * config.reward_scale,
            config.discount_factor * (~batch["terminated"]).float(),
            value,
            next_value.view(shape),
            goes_on=goes_on,
            gae_lambda=config.gae_lambda,
        )
        found = {name: column for name, column in batch.items() if name == "obs" or name.startswith("obs/")}
        found |= {CHOICE: choice.view(*shape, -1), LOG_PROB.name: batch[LOG_PROB.name], "ratio": ratio}
        return found | {"advantage": advantage, "value": value, "target": value + advantage}

    def _evaluate_batch(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The policy's outputs for the steps of a batch ``[B L, K]``, the values before and after them, ``[B L]``."""
        outputs, value = self.policy_net(flatten_time(from_columns("obs", batch)))
        _, next_value = self.policy_net(flatten_time(from_columns("next_obs", batch)))
        return outputs, value, next_value

    def _evaluate(self, steps: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The outputs of the policy for the steps of a minibatch ``[m, K]``, and their values ``[m]``."""
        outputs, value = self.policy_net(from_columns("obs", steps))
        return outputs, value

    def _take_epochs(self, steps: Batch) -> Results:
        """Learn from n parts, columns ``[n, …]``, in all epochs; the results are means over the gradient steps."""
        config, n = self.config, len(steps["advantage"])
        taken, found = torch.tensor(float(self._gradient_steps)), list[Results]()
        factor = torch.ones(()) if config.clip_schedule is None else config.clip_schedule.factor(taken)
        clip = (config.clip_range * factor).to(self.device)
        for _ in range(config.epochs):
            order = torch.randperm(n, generator=self._generator, device=self.device)
            for part in order.chunk(config.minibatches):
                found.append(self._learn({name: column[part] for name, column in steps.items()} | {"clip_range": clip}))
            kl = torch.stack([each["kl"] for each in found[-config.minibatches :]]).mean()
            if config.target_kl is not None and float(average(kl)) > config.target_kl:  # All ranks stop together.
                break
        self._gradient_steps += len(found)
        means = {name: torch.stack([each[name] for each in found]).mean() for name in found[0]}
        return means | {"epochs": torch.tensor(len(found) / config.minibatches)}

    def _learn_from(self, steps: Batch) -> Results:
        """One gradient step on a minibatch of m parts, columns ``[m, …]``."""
        config, used, clip = self.config, steps["is_used"], steps["clip_range"]
        outputs, value = self._evaluate(steps)
        value = value.view(used.shape)
        advantage, target, old = steps["advantage"], steps["target"], steps["value"]
        if config.normalize_advantages:
            advantage = _normalize(advantage, used)
        # 1. The policy: no gain from a ratio beyond the clip range, only losses count there.
        log_prob = self.actions.log_prob(outputs, steps[CHOICE].flatten(0, -2)).view(used.shape)
        log_ratio = (log_prob - steps[LOG_PROB.name]).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        ratio = log_ratio.exp()
        bounded = torch.minimum(torch.maximum(ratio, 1 - clip), 1 + clip)
        surrogate = torch.minimum(ratio * advantage, bounded * advantage)
        policy_loss = -masked_loss(surrogate, used)
        # 2. The values, which may be kept near those of the policy that acted.
        error = (target - value).square()
        if config.clip_range_values is not None:
            near = old + (value - old).clamp(-config.clip_range_values, config.clip_range_values)
            error = torch.maximum(error, (target - near).square())
        value_loss = 0.5 * masked_loss(error, used)
        entropy = masked_loss(self.actions.entropy(outputs).view(used.shape), used)
        # 3. Both, and a reward for entropy.
        results = self._descend(policy_loss, value_loss, entropy, value, used)
        with torch.no_grad():
            kl, is_clipped = masked_mean(ratio - 1 - log_ratio, used), ((ratio - 1).abs() > clip).float()
            return results | {"kl": kl, "clipped_share": masked_mean(is_clipped, used)}


def _normalize(advantage: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
    """Advantages ``[m, …]``; those that are used, on all ranks together, get mean 0 and variance 1."""
    gap = advantage - average(masked_loss(advantage, used))
    n = total(used.sum())
    variance = average(masked_loss(gap.square(), used)) * n / (n - 1).clamp(min=1)
    return gap / (variance.sqrt() + 1e-8)
