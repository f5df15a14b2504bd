"""The part that all agents of action values share: how they act, learn and move their target network.

``common.agents.dqn``, ``iqn``, ``c51`` and ``qr_dqn`` add a network, its loss and its target. Extensions of DQN (Mnih
et al. 2015) are settings of all four: double (arXiv:1509.06461), dueling (arXiv:1511.06581), noisy (arXiv:1706.10295).
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from pydantic import Field, PositiveFloat, PositiveInt, field_validator
from torch import nn

from common.agents.actions import ActionIndex
from common.agents.exploring.over_values import EpsilonGreedy, EvaluationEpsilon, Explorer
from common.agents.network_agent import (
    Batch,
    Inference,
    LaneRandom,
    NetworkAgent,
    NormalizeBatch,
    Results,
    Update,
    build_optimizer,
    descend,
    draw_transitions,
    measure_td_error,
    report_td_error,
    to_tensors,
    track,
)
from common.agents.networks.allowed import AllowedActions
from common.agents.networks.encoders import LeafSpaces
from common.agents.networks.noisy import add_noise, drawn_noise, given_noise, noisy_layers
from common.agents.networks.normalization import build_normalizer
from common.agents.networks.picture_leaves import RandomShift
from common.agents.networks.policies import GreedyQ
from common.agents.shared_settings import (
    BatchItems,
    DiscountFactor,
    Dueling,
    GradNormLimit,
    LearningRate,
    NormalizeObservations,
    NormalizeRewards,
    OneNetworkConfig,
    PictureFeatures,
    ShiftPixels,
    UpdatesPerOpt,
)
from common.config.replay_config import Unit
from common.data import Array, Items, Leaves, Model, Record
from common.interfaces import EnvSpec, ReplayBuffer
from common.plugins.part_config import PluginConfig
from common.spaces import from_columns

ResultT = TypeVar("ResultT")


class QAgentConfig(OneNetworkConfig):
    """The settings that all agents of action values share."""

    units: tuple[PositiveInt, ...] = Field((256, 256), description="The width of each hidden layer of the network.")
    network: PluginConfig | None = Field(
        None,
        description="Your own network; it is called with in_shape, out_dim and params. null: a network with the "
        "layers of units, above convolutions for each picture.",
    )
    feature_dim: PictureFeatures = 256
    random_shift: ShiftPixels = 0
    normalize_observations: NormalizeObservations = False
    normalize_rewards: NormalizeRewards = False
    lr: LearningRate = 1e-3
    batch_size: BatchItems = 64
    n_updates_per_opt: UpdatesPerOpt = 1
    discount_factor: DiscountFactor = 0.99
    double_dqn: bool = Field(
        True,
        description="Whether the online network chooses the next action in targets, and the target network only "
        "values it (double DQN).",
    )
    dueling: Dueling = False
    noisy: PositiveFloat | None = Field(
        None,
        description="Noisy networks: linear layers have noise whose size is learned, and begins at this value (0.5 "
        "in the paper). Actors then explore by this noise, usually with the explorer greedy. null: no noise.",
    )
    tau: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0,
        description="How far the target network moves towards the online network in an update of the target; 1 "
        "copies the online network.",
    )
    soft_update_interval: PositiveInt = Field(
        250, description="The number of opt steps between two updates of the target network."
    )
    max_grad_norm: GradNormLimit = 10.0
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


class QAgent(NetworkAgent):
    """An agent with a network of action values and a target; the subclass makes the network and computes the loss.

    It learns from transitions. If they have a column ``discount``, as n-step transitions have, it replaces
    ``discount_factor``.

    Args:
        spec: observations of any space, see ``common.agents.networks.encoders``; ``Discrete`` or ``MultiDiscrete``
            actions.
        seed: of the initial weights and of exploration.
        epsilon: this actor's rung of the exploration ladder.
        device: where the networks live.
        params: see the subclass's ``Config``.

    Raises:
        ConfigError: the action space is neither Discrete nor MultiDiscrete, or it has too many joint actions; or a leaf
            of the observation space cannot be stored.
        PluginError: the user's own network cannot be built, or has other outputs than ``[B, out_dim]``.
    """

    Config: ClassVar[type[QAgentConfig]]
    config: QAgentConfig
    counters: ClassVar = ("_opt_steps",)

    def __init__(self, spec: EnvSpec, *, seed: int, epsilon: float = 0.0, device: str = "cpu", **params: Any) -> None:
        self.config = config = self.Config(**params)
        self.device = torch.device(device)
        self.actions = ActionIndex(type(self).__name__, spec.action_space, self.device)
        self._shift = RandomShift(spec.observation_space, config.random_shift, seed, self.device)
        self._shift_generator = self._shift.generator
        self.allowed = AllowedActions(spec, self.actions.components).to(self.device)
        observations = self.allowed.leaves
        torch.manual_seed(seed)
        self.qnet, self.qnet_tgt = (self._make_qnet(observations).to(self.device) for _ in range(2))
        self.qnet_tgt.load_state_dict(self.qnet.state_dict())
        self.normalizer = build_normalizer(
            observations, enabled=config.normalize_observations, rewards=config.normalize_rewards
        ).to(self.device)
        self.nets = {"qnet": self.qnet, "qnet_tgt": self.qnet_tgt, "normalizer": self.normalizer}
        self._optimizer = build_optimizer(self.qnet.parameters(), config.lr, config.optimizer)
        self._noise_generator = torch.Generator(self.device).manual_seed(seed) if config.noisy else None
        captured = self.captures(config)
        self._normalize = NormalizeBatch(self.normalizer, captured=captured)
        learn = self._noisily(self._learn_from, self.qnet, self.qnet_tgt)
        self.learn = Update(learn, self.nets, captured=captured)
        act = nn.Sequential(self.normalizer, self.allowed.over(self.qnet))
        self._action_values = Inference(act, self.device, captured=captured)  # [n, A]
        self._noisy_values = self._infer_noisily(act, captured=captured)
        self._opt_steps = 0
        self._rng, self._lane_random = np.random.default_rng(seed), LaneRandom(seed)
        self._epsilon = epsilon
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
            with drawn_noise(generator, *nets) if noise is None else given_noise(noise, *nets):
                return function(argument)

        return compute

    def _infer_noisily(self, function: Callable[[Any], torch.Tensor], *, captured: bool) -> Inference:
        """An inference with new noise in ``qnet`` in each call, if it is noisy."""
        n_numbers = sum(layer.n_numbers for layer in noisy_layers(self.qnet))
        noise = (lambda lanes: self._lane_random.of(lanes).standard_normal(n_numbers)) if n_numbers else None
        return Inference(self._noisily(function, self.qnet), self.device, captured=captured, noise=noise)

    def eval(self) -> None:
        super().eval()
        self._evaluation.begin()

    def sample(self, obs: Leaves, lanes: Array | None = None) -> Array:
        is_noisy = self.is_train and self.config.noisy
        values = (self._noisy_values if is_noisy else self._action_values)(obs, lanes)
        return self.actions.to_env(self._choose(values, lanes))

    def _choose(self, values: Array, lanes: Array | None) -> Array:
        """The numbers ``[n]`` of the actions to take, for action values ``[n, A]``."""
        if not self.is_train:
            return self._evaluation.choose(values, lanes)
        rng = self._rng if lanes is None else self._lane_random.of(lanes)
        return self.config.explorer.choose(values, self._opt_steps, self._epsilon, rng)

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        if len(buffer) == 0:
            return None
        results: Results = {}
        left = self.config.n_updates_per_opt
        while left:
            for batch in self._draw_batches(buffer):
                left -= 1
                results = self.learn(batch, recorded=left == 0)
                report_td_error(buffer, batch, results)
        self._opt_steps += 1
        if self._opt_steps % self.config.soft_update_interval == 0:
            track(self.qnet_tgt, self.qnet, self.config.tau)
        return {**results}

    def _draw_batches(self, buffer: ReplayBuffer) -> Sequence[Batch]:
        """Draw the next batches of this opt step: one, or as many as divide the number of its updates."""
        return (self._draw(buffer),)

    def _draw(self, buffer: ReplayBuffer, n: int = 1) -> Batch:
        """Draw ``n`` batches as one, shift their pictures and normalise them."""
        batch = draw_transitions(type(self).__name__, buffer, n * self.config.batch_size, self.device)
        return self._normalize(self._shift(batch))

    def _learn_from(self, batch: Batch) -> Results:
        """One gradient step on a batch."""
        loss, prediction, target = self._loss(batch, self.qnet_tgt)
        results = {"loss": loss.detach(), "pred_mean": prediction.detach().mean(), "tgt_mean": target.mean()}
        grad_norm = descend(loss, self._optimizer, self.config.max_grad_norm)
        if grad_norm is not None:
            results["grad_norm"] = grad_norm
        return results | measure_td_error(batch, prediction, target)

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

    def sync_model(self, model: Model) -> None:
        super().sync_model(model)
        self._opt_steps = model.version.opt_steps

    def policy(self) -> nn.Module:
        greedy = GreedyQ(self.allowed.over(self.qnet), torch.from_numpy(self.actions.table)).to(self.device)
        return nn.Sequential(self.normalizer, greedy)
