"""DQN (Mnih et al. 2015), and what all agents of action values share: how they act, learn and move their targets.

A network learns the expected return of each action: ``Q(s, a) = reward + discount * V(s')``. The value of the next
observation comes from a target network, an older copy of the network, so that targets do not move with every update.

``common.agents.iqn``, ``c51``, ``qr_dqn`` and ``r2d2`` have another network, loss and target. Extensions of DQN are
settings of all of them: double (arXiv:1509.06461), dueling (arXiv:1511.06581), noisy (arXiv:1706.10295).
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

import numpy as np
import torch
from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator
from torch import nn

from common.agents import agent_settings
from common.agents.configured_agent import OffPolicyAgent, OneNetworkConfig, TransitionConfig
from common.agents.exploring import EpsilonGreedy, EvaluationEpsilon, Explorer
from common.agents.losses.munchausen import Munchausen
from common.agents.losses.values import critic_loss, double_q_value, td_target
from common.agents.machinery.gradient_step import (
    Batch,
    count_at_once,
    descend,
    discount_of,
    draw_transitions,
    measure_td_error,
    split_batches,
    to_tensors,
    track,
)
from common.agents.machinery.optimizers import build_optimizer
from common.agents.machinery.update import Results, Update
from common.agents.networks.discrete_actions import ActionIndex, AllowedActions, GreedyQ
from common.agents.networks.encoders import LeafSpaces
from common.agents.networks.layers import Observed
from common.agents.networks.noisy import add_noise, noise_in, noisy_layers
from common.agents.networks.picture_networks import RandomShift
from common.config.replay_config import Unit
from common.data import Array, Items, Leaves, Record
from common.interfaces import EnvSpec, ReplayBuffer
from common.plugins.part_config import PluginConfig
from common.spaces import from_columns


def join_dueling(outputs: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """Action values from a state value and advantages: ``Q = V + A - mean A`` (arXiv:1511.06581, 9).

    Args:
        outputs: ``1 + A`` outputs along ``dim``: V, then A.
        dim: the axis of the outputs, and of the A action values in the result.
    """
    value, advantage = outputs.tensor_split((1,), dim=dim)
    return value + advantage - advantage.mean(dim=dim, keepdim=True)


class DuelingNetwork(nn.Module):
    """Action values of a network that gives a state value and advantages.

    The two streams part only in the last layer of ``net``: its first output is V, the others are A. In the paper each
    stream has a separate hidden layer; a user's own network can have them.

    Args:
        net: gives ``[B, 1 + A]``.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, obs: Observed) -> torch.Tensor:
        """Observations of B rows to ``[B, A]``."""
        return join_dueling(self.net(obs))


ResultT = TypeVar("ResultT")


class QAgentConfig(OneNetworkConfig, TransitionConfig):
    """The settings that all agents of action values share."""

    units: tuple[PositiveInt, ...] = Field((256, 256), description="The width of each hidden layer of the network.")
    network: PluginConfig | None = Field(
        None,
        description="Your own network; it is called with in_shape, out_dim and params. null: a network with the "
        "layers of units, above convolutions for each picture.",
    )
    feature_dim: agent_settings.PictureFeatures = 256
    lr: agent_settings.LearningRate = 1e-3
    batch_size: agent_settings.BatchItems = 64
    double_dqn: bool = Field(
        True,
        description="Whether the online network chooses the next action in targets, and the target network only "
        "values it (double DQN).",
    )
    dueling: agent_settings.Dueling = False
    noisy: PositiveFloat | None = Field(
        None,
        description="Noisy networks: linear layers have noise whose size is learned, and begins at this value (0.5 "
        "in the paper). Actors then explore by this noise, usually with the explorer greedy. null: no noise.",
    )
    tau: agent_settings.Tau = 1.0
    soft_update_interval: PositiveInt = Field(
        250, description="The number of opt steps between two updates of the target network."
    )
    max_grad_norm: agent_settings.GradNormLimit = 10.0
    explorer: Explorer = Field(
        EpsilonGreedy(), description="The way in which actors explore, by kind: epsilon_greedy, softmax or greedy."
    )
    eval_epsilon: Unit = Field(
        0.0,
        description="The share of random actions in evaluations; published results on Atari often use 0.001 or 0.05. "
        "Exported policies take no random actions.",
    )

    @field_validator("explorer", mode="before")
    @classmethod
    def _epsilon_greedy_without_a_kind(cls, explorer: object) -> object:
        return {"kind": "epsilon_greedy", **explorer} if isinstance(explorer, dict) else explorer


class QLoss(NamedTuple):
    """The loss of a batch, and the values that it compares."""

    loss: torch.Tensor
    """A scalar; weighted if the batch has weights."""
    prediction: torch.Tensor
    """The values of the batch's actions by the online network, ``[B]``."""
    target: torch.Tensor
    """The values that ``prediction`` should have, ``[B]``."""


class QAgent(OffPolicyAgent):
    """An agent with a network of action values and a target; the subclass makes the network and computes the loss.

    It learns from transitions. If they have a column ``discount``, as n-step transitions have, it replaces
    ``discount_factor``.

    It takes ``Discrete`` or ``MultiDiscrete`` actions. For arguments and errors see ``ConfiguredAgent``.
    """

    Config: ClassVar[type[QAgentConfig]]
    config: QAgentConfig
    counters: ClassVar = ("_opt_steps",)

    def __init__(self, spec: EnvSpec, *, seed: int, **given: Any) -> None:
        super().__init__(seed=seed, **given)
        config = self.config
        self.actions = ActionIndex(type(self).__name__, spec.action_space, self.device)
        self._shift = RandomShift(spec.observation_space, config.random_shift, seed, self.device)
        self._shift_generator = self._shift.generator
        self.allowed = AllowedActions(spec, self.actions.components).to(self.device)
        observations = self.allowed.leaves
        self.qnet, self.qnet_tgt = (self._make_qnet(observations).to(self.device) for _ in range(2))
        self.qnet_tgt.load_state_dict(self.qnet.state_dict())
        self._normalize_batches(observations, rewards=config.normalize_rewards)
        self.nets = {"qnet": self.qnet, "qnet_tgt": self.qnet_tgt, "normalizer": self.normalizer}
        self._optimizer = build_optimizer(self.qnet.parameters(), config.lr, config.optimizer)
        self._noise_generator = torch.Generator(self.device).manual_seed(seed) if config.noisy else None
        learn = self._noisily(self._learn_from, self.qnet, self.qnet_tgt)
        self.learn = Update(learn, self.nets, captured=self._captured)
        self._act_over(nn.Sequential(self.normalizer, self.allowed.over(self.qnet)))
        self._rng = np.random.default_rng(seed)
        self._evaluation = EvaluationEpsilon(config.eval_epsilon)

    @abc.abstractmethod
    def _make_qnet(self, observations: LeafSpaces) -> nn.Module:
        """Make a network that turns observations of B rows into action values ``[B, A]``."""

    @abc.abstractmethod
    def _loss(self, batch: Batch, target_net: nn.Module) -> QLoss:
        """The loss of ``qnet`` on a batch; ``target_net``, made as ``qnet`` was, values the next observations."""

    def _make_network(self, observations: LeafSpaces, out_dim: int) -> nn.Module:
        """The network of the settings, noisy if they say so: observations of B rows to ``[B, out_dim]``."""
        return self._add_noise(self.config.build(observations, out_dim))

    def _add_noise(self, net: nn.Module) -> nn.Module:
        """The network, its linear layers noisy if the settings say so."""
        return add_noise(net, self.config.noisy) if self.config.noisy else net

    def _noisily(self, function: Callable[[Any], ResultT], *nets: nn.Module) -> Callable[[Any], ResultT]:
        """The function, with new noise in ``nets`` in each call if they are noisy; ``noise`` has that of each row."""
        generator = self._noise_generator
        if generator is None:
            return function

        def compute(argument: Any, noise: torch.Tensor | None = None) -> ResultT:
            with noise_in(generator if noise is None else noise, *nets):
                return function(argument)

        return compute

    def _act_over(self, function: Callable[[Any], torch.Tensor]) -> None:
        """Make ``_infer`` of a function of ``qnet``; a noisy ``qnet`` has new noise in each call that explores."""
        if self.config.noisy:
            n_numbers = sum(layer.n_numbers for layer in noisy_layers(self.qnet))
            noisy = self._noisily(function, self.qnet)
            self._act_by(function, noisy, lambda lanes: self._lane_random.of(lanes).standard_normal(n_numbers))
        else:
            self._act_by(function)

    def eval(self) -> None:
        super().eval()
        self._evaluation.begin()

    def sample(self, obs: Leaves, lanes: Array | None = None) -> Array:
        return self.actions.to_env(self._choose(self._infer(obs, lanes), lanes))

    def _choose(self, values: Array, lanes: Array | None) -> Array:
        """The numbers ``[n]`` of the actions to take, for action values ``[n, A]``."""
        if not self.is_train:
            return self._evaluation.choose(values, lanes)
        rng = self._rng if lanes is None else self._lane_random.of(lanes)
        return self.config.explorer.choose(values, self._opt_steps, self._epsilon, rng)

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        record = super().opt(buffer)
        if record is not None and self._opt_steps % self.config.soft_update_interval == 0:
            track(self.qnet_tgt, self.qnet, self.config.tau)
        return record

    def _draw_batches(self, buffer: ReplayBuffer) -> Sequence[Batch]:
        return (self._draw(buffer),)

    def _draw(self, buffer: ReplayBuffer, n: int = 1) -> Batch:
        """Draw ``n`` batches as one, shift their pictures and normalise them."""
        batch = draw_transitions(type(self).__name__, buffer, n * self.config.batch_size, self.device)
        return self._normalize(self._shift(batch))

    def _learn_from(self, batch: Batch) -> Results:
        """One gradient step on a batch."""
        loss, prediction, target = self._loss(batch, self.qnet_tgt)
        results = {"loss": loss.detach(), **self._compare(batch, prediction.detach(), target)}
        return results | descend(loss, self._optimizer, self.config.max_grad_norm)

    def _compare(self, batch: Batch, prediction: torch.Tensor, target: torch.Tensor) -> Results:
        """The means of predictions and targets, and the TD errors."""
        means = {"pred_mean": prediction.mean(), "tgt_mean": target.mean()}
        return means | measure_td_error(batch, prediction, target)

    def _choose_next(self, batch: Batch, target_net: nn.Module) -> torch.Tensor:
        """The best next actions ``[B]``: in double DQN by the online network, otherwise by the target network."""
        chooser = self.qnet if self.config.double_dqn else target_net
        next_obs = from_columns("next_obs", batch)
        action: torch.Tensor = self.allowed(chooser(next_obs), next_obs).argmax(dim=1)
        return action

    def td_error(self, items: Items) -> Array:
        """Actors, which call this method, have no target network, so ``qnet`` itself values the next observations."""
        with torch.inference_mode():
            batch = self.normalizer.normalize(to_tensors(items, self.device))
            _, prediction, target = self._loss(batch, self.qnet)
        error: Array = (target - prediction).cpu().numpy()
        return error

    def policy(self) -> nn.Module:
        greedy = GreedyQ(self.allowed.over(self.qnet), torch.from_numpy(self.actions.table)).to(self.device)
        return nn.Sequential(self.normalizer, greedy)


TARGET: Final = "target"
"""The column of a batch for its targets ``[B]``, if they are known before the update."""
NEXT_VALUES: Final = "next_values"
"""The column of a batch for the target network's values ``[B, A]`` of the next observations, if they are known."""


class MunchausenConfig(QAgentConfig):
    """The settings that DQN and IQN share."""

    munchausen: Munchausen | None = Field(
        None,
        description="Targets of Munchausen DQN, in which double_dqn has no effect; {} takes the paper's values. null: "
        "plain targets.",
    )

    @model_validator(mode="after")
    def _one_target(self) -> MunchausenConfig:
        if self.munchausen is not None and self.double_dqn and "double_dqn" in self.model_fields_set:
            raise ValueError("give munchausen or double_dqn, not both: Munchausen's target chooses no next action")
        return self


class DQNConfig(MunchausenConfig):
    """``agent.params`` of ``DQN``."""

    critic_loss: agent_settings.LossOfCritics = "smooth_l1"


class DQN(QAgent):
    """Q-learning with a network of one value an action.

    Arguments and errors are those of ``QAgent``; params: see ``DQNConfig``.
    """

    Config = DQNConfig
    config: DQNConfig

    def __init__(self, spec: EnvSpec, *, seed: int, **given: Any) -> None:
        super().__init__(spec, seed=seed, **given)
        config = self.config
        self._evaluate_target = Update(self._see_target, {}, captured=self._captured)
        self._n_at_once = 1 if config.noisy else count_at_once(spec, config.batch_size, config.n_updates_per_opt)

    def _make_qnet(self, observations: LeafSpaces) -> nn.Module:
        if self.config.dueling:
            return DuelingNetwork(self._make_network(observations, 1 + self.actions.size))
        return self._make_network(observations, self.actions.size)

    def _draw_batches(self, buffer: ReplayBuffer) -> Sequence[Batch]:
        """Draw several batches at once; the target network, fixed during an opt step, sees all of them in one pass.

        Larger products take half the time for each row. A noisy target network has other noise in each update.
        """
        n = self._n_at_once if buffer.is_uniform else 1
        if n == 1:
            return super()._draw_batches(buffer)
        drawn = self._draw(buffer, n)
        return split_batches({**drawn, **self._evaluate_target(drawn)}, n)

    @torch.no_grad()
    def _see_target(self, batch: Batch) -> Results:
        """The targets ``[B]``; in double DQN, only the target network's values of the next observations ``[B, A]``."""
        if self.config.double_dqn and self.config.munchausen is None:
            return {NEXT_VALUES: self.qnet_tgt(from_columns("next_obs", batch))}
        return {TARGET: self._target(batch, self.actions.from_env(batch["action"]), self.qnet_tgt)}

    def _loss(self, batch: Batch, target_net: nn.Module) -> QLoss:
        action = self.actions.from_env(batch["action"])
        target = batch[TARGET] if TARGET in batch else self._target(batch, action, target_net)
        prediction = self.qnet(from_columns("obs", batch)).gather(1, action[:, None]).squeeze(1)  # [B]
        loss = critic_loss(self.config.critic_loss, prediction, target, batch.get("weight"))
        return QLoss(loss, prediction, target)

    @torch.no_grad()
    def _target(self, batch: Batch, action: torch.Tensor, target_net: nn.Module) -> torch.Tensor:
        """``reward + discount * V(next_obs)``, ``[B]``."""
        next_obs, reward = from_columns("next_obs", batch), batch["reward"]
        q_next = self.allowed(batch[NEXT_VALUES] if NEXT_VALUES in batch else target_net(next_obs), next_obs)  # [B, A]
        if self.config.munchausen is not None:
            obs = from_columns("obs", batch)
            reward = reward + self.config.munchausen.bonus(self.allowed(target_net(obs), obs), action)
            value = self.config.munchausen.value(q_next, q_next)
        elif self.config.double_dqn:
            value = double_q_value(self.allowed(self.qnet(next_obs), next_obs), q_next)
        else:
            value = q_next.amax(dim=1)
        return td_target(reward, batch["terminated"], value, discount_of(batch, self.config.discount_factor))
