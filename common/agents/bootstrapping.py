"""The part that SAC and TD3 share: critics that learn from the policy's next action, and their settings.

Settings turn the critics into those of FastTD3 and FastSAC (distributions), of CrossQ (no targets), of TQC (truncated
quantiles) or of REDQ (many critics, few of which make a target).
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from common.agents import agent_settings
from common.agents.actor_critic import FEATURES, ActorCritic, ActorCriticConfig
from common.agents.losses.offline_losses import imitation_loss, mean_squared_distance
from common.agents.losses.values import td_target
from common.agents.machinery.gradient_step import Batch, descend, discount_of, measure_td_error
from common.agents.machinery.update import Results
from common.agents.networks.batch_renorm import frozen_statistics
from common.agents.networks.critics import Critics, Returns, ScalarReturn
from common.agents.networks.distributional_critics import CriticReturn
from common.agents.networks.layers import Observed
from common.agents.noise import LaneNoise
from common.data import Array, Leaves
from common.errors import ConfigError
from common.interfaces import EnvSpec, ReplayBuffer
from common.leaves import n_rows
from common.spaces import from_columns


class BootstrappingConfig(ActorCriticConfig):
    """The settings that SAC and TD3 share."""

    random_opts: agent_settings.RandomOpts = 1
    critic: CriticReturn = Field(
        ScalarReturn(),
        description="The form in which critics predict the return, by kind: scalar (its mean), categorical or "
        "quantile (its distribution).",
    )
    target_critics: Literal["least", "own"] = Field(
        "least",
        description="The critic whose value is in the target of each critic. least: the critic with the least value "
        "(arXiv:1802.09477); own: the critic itself, and the policy follows the mean of all critics (FastSAC).",
    )
    n_target_critics: PositiveInt | None = Field(
        None,
        description="The number of critics, drawn at random in each update, of which the least makes the target; "
        "null: all. With a number, the policy follows the mean of all critics (REDQ draws 2 of 10).",
    )
    targets: bool = Field(
        True, description="Whether critics have target networks; without them, they need a normalization (CrossQ)."
    )
    policy_delay: PositiveInt = Field(
        1, description="The number of updates of the critics for each update of the actor."
    )
    share_encoder: bool = Field(
        False,
        description="Whether actor, critics and targets share one encoder of observations, which the critics' loss "
        "trains (DrQ-v2). false: the actor has an encoder, and the critics have one, which targets follow.",
    )
    imitation: PositiveFloat | None = Field(
        None,
        description="Lets the policy imitate the actions of a dataset: the weight of the mean squared distance to "
        "them, in units of the mean size of the values, beside the value of the policy's own actions. 0.4 is TD3+BC's "
        "alpha of 2.5. null: the policy follows the critics alone.",
    )
    critic_imitation: PositiveFloat | None = Field(
        None,
        description="Lets the critics value the policy's next action less, the further it is from the next action of "
        "a dataset: the weight of the mean squared distance, in units of scaled rewards. With imitation it is ReBRAC, "
        "whose beta is this weight divided by the number of dimensions of an action. It needs "
        "replay.view.params.next_actions: true. null: the distance does not count.",
    )

    @model_validator(mode="after")
    def _critics_fit(self) -> BootstrappingConfig:
        if not self.targets and not self.has_norms:
            raise ValueError(
                "targets: false needs critics that are normalised, or their values diverge: set normalization: batch "
                "(CrossQ) or layer"
            )
        if not self.targets and "tau" in self.model_fields_set:
            raise ValueError("tau is the speed of target networks, and with targets: false there are none")
        if self.n_target_critics is not None and not self.n_target_critics <= self.n_critics:
            raise ValueError(f"n_target_critics ({self.n_target_critics}) is above n_critics ({self.n_critics})")
        if self.target_critics == "own" and (self.n_target_critics or self.critic.kind == "quantile"):
            raise ValueError(
                "target_critics: own cannot be combined with n_target_critics or quantile critics, whose targets are "
                "made from several critics"
            )
        if self.critic.kind != "scalar" and "critic_loss" in self.model_fields_set:
            raise ValueError(f"critic_loss is for scalar critics; {self.critic.kind} critics have another loss")
        return self

    @model_validator(mode="after")
    def _keys_fit(self) -> BootstrappingConfig:
        keys = [None if keys is None else set(keys) for keys in (self.actor_keys, self.critic_keys)]
        if self.share_encoder and keys[0] != keys[1]:
            raise ValueError(
                "share_encoder: actor and critics can share an encoder only if they see the same: give actor_keys and "
                f"critic_keys the same paths, found {self.actor_keys} and {self.critic_keys}"
            )
        return self

    @property
    def follows_mean(self) -> bool:
        """Whether the policy follows the mean of all critics instead of the least one."""
        return self.target_critics == "own" or self.n_target_critics is not None or self.critic.kind == "quantile"


class Bootstrapping(ActorCritic):
    """An actor-critic whose critics learn from the value of the action that the policy takes next.

    The subclass chooses this action, and improves the actor. Arguments and errors are those of ``ActorCritic``.

    It explores uniformly at random until the learner has taken ``random_opts`` opt steps, then by its policy. An
    untrained policy hardly moves, so that its steps would show the critics one small part of the action space. TD3's
    authors act at random for the first 1,000 or 10,000 environment steps (arXiv:1802.09477, section 6.1) and begin to
    learn after them (https://github.com/sfujim/TD3, main.py, ``start_timesteps``); SAC's authors do the same
    (https://github.com/rail-berkeley/softlearning, ``n_initial_exploration_steps``). Here the learner's opt steps are
    counted instead: each model brings their number, so an actor that joins late does as the others do. About
    ``trainer.warmup_period`` steps are random; so are the steps that actors take until a model with enough opt steps
    arrives.
    """

    config: BootstrappingConfig
    counters: ClassVar[tuple[str, ...]] = ("_opt_steps", "_n_updates")
    _action_noise: LaneNoise | None = None
    """The noise of exploring actions, which the subclass sets; None: independent noise in each step."""

    def __init__(self, spec: EnvSpec, **given: Any) -> None:
        super().__init__(spec, **given)
        self._n_updates = 0
        if self.encoder is not None and not self.encoder.state_dict():
            raise ConfigError(
                "agent.params.share_encoder: expected a network, or observations with pictures or choices, which have "
                f"an encoder to share; found {spec.observation_space}"
            )
        if not self.config.targets:
            self.critics_tgt = self.critics
            del self.nets["critics_tgt"]

    def begin(self, begins: Array, lanes: Array | None = None) -> None:
        if self.is_train and self._action_noise is not None:
            self._action_noise.begin(begins, lanes)

    def sample(self, obs: Leaves, lanes: Array | None = None) -> Array:
        if not self.is_train or self._opt_steps >= self.config.random_opts:
            return super().sample(obs, lanes)
        if lanes is None:
            shape = (n_rows(obs), self.action_scale.size)
            share = torch.rand(shape, generator=self._generator, device=self.device)
        else:
            share = torch.from_numpy(self._lane_random.of(lanes).random(self.action_scale.size)).to(self.device)
        actions: Array = self.action_scale.to_env(2 * share - 1).numpy(force=True)  # From [n, A], uniform in [-1, 1].
        return actions

    def _draw_noise(self, lanes: Array) -> Array:
        if self._action_noise is None:
            return super()._draw_noise(lanes)
        noise: Array = self._action_noise.draw(len(lanes), lanes).numpy(force=True)
        return noise

    @abc.abstractmethod
    def _next_action(self, next_obs: Observed) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The policy's actions ``[B, A]`` after the next observations, and the cost of each ``[B]``; None: no cost."""

    def _shares_encoder(self) -> bool:
        return self.config.share_encoder

    def _make_critics(self, n_dims: int) -> Critics:
        config = self.config
        encoder, n_features = self._make_encoder(self._critic_leaves)
        units = config.units_of_critics
        return Critics(config.n_critics, encoder, n_features, n_dims, units, layers=config, learnt=config.critic)

    def _improve_critics(self, batch: Batch) -> Results:
        config, obs = self.config, self._encode(from_columns("obs", batch))
        with torch.no_grad(), frozen_statistics(*self.nets.values()):
            next_obs = self._encode(from_columns("next_obs", batch))
            next_action, cost = self._next_action(next_obs)
            cost = self._add_distance(cost, next_action, batch)
        if config.has_batch_norms or not config.targets:
            # In one pass, so that batch normalisation sees actions of the replay and of the policy together.
            both = self.critics.outputs(_join(obs, next_obs), torch.cat((batch["action"], next_action)))
            outputs, next_outputs = both.chunk(2, dim=1)  # [N, B, K]
        else:
            outputs = self.critics.outputs(obs, batch["action"])
        with torch.no_grad():
            if config.targets:
                next_outputs = self.critics_tgt.outputs(next_obs, next_action)
            following = self._following(next_outputs, cost)
            reward, discount = batch["reward"] * config.reward_scale, discount_of(batch, config.discount_factor)
            values = td_target(reward, batch["terminated"], following.values, discount)
            target = Returns(values, following.probability)
        loss = self._critics_loss(outputs, target, batch, obs, next_obs)
        descend(loss, self._critics_optimizer, config.max_grad_norm)
        q = config.critic.value(outputs.detach())  # [N, B]
        results = {"loss_critic": loss.detach(), "q_mean": q.mean()}
        if isinstance(obs, torch.Tensor) and self.encoder is not None:
            results[FEATURES] = obs.detach()
        return results | measure_td_error(batch, q, config.critic.expected(target))

    def _add_distance(self, cost: torch.Tensor | None, action: torch.Tensor, batch: Batch) -> torch.Tensor | None:
        """The cost ``[B]`` of the policy's next actions ``[B, A]``, and of their distance to those of the data.

        Where an episode was truncated, the data has no next action, and so there is no distance.
        """
        weight = self.config.critic_imitation
        if weight is None:
            return cost
        distance = weight * mean_squared_distance(action, batch["next_action"])
        distance = distance.masked_fill(batch["truncated"], 0.0)
        return distance if cost is None else cost + distance

    def _critics_loss(
        self,
        outputs: torch.Tensor,
        target: Returns,
        batch: Batch,
        obs: Observed,  # noqa: ARG002 - for subclasses, as are the next ones
        next_obs: Observed,  # noqa: ARG002
    ) -> torch.Tensor:
        """The loss of the critics' outputs ``[N, B, K]`` for the batch's actions."""
        return self.config.critic.loss(outputs, target, self.config.critic_loss, batch.get("weight"))

    def _draw_batches(self, buffer: ReplayBuffer) -> Sequence[Batch]:
        batches = super()._draw_batches(buffer)
        if self.config.critic_imitation is not None and "next_action" not in batches[0]:
            raise ConfigError(
                "agent.params.critic_imitation: expected transitions with the next action of the data; set "
                f"replay.view.params.next_actions: true; found the columns {sorted(batches[0])}"
            )
        return batches

    def _following(self, outputs: torch.Tensor, cost: torch.Tensor | None) -> Returns:
        """The returns after the next observations, by the critics' outputs ``[N, B, K]``, less the cost ``[B]``."""
        config = self.config
        if config.n_target_critics is not None:
            order = torch.rand(config.n_critics, generator=self._generator, device=self.device).argsort()
            outputs = outputs[order[: config.n_target_critics]]
        following = config.critic.following(outputs, least=config.target_critics == "least")
        return following if cost is None else Returns(following.values - cost, following.probability)

    def _seen_by_actor(self, batch: Batch) -> Observed:
        """The actor's inputs in an update: the observations, or their features from the critics' update.

        So pictures pass a shared encoder once in an update, as in the code of DrQ-v2's authors (arXiv:2107.09645).
        """
        return from_columns("obs", batch) if self.encoder is None else batch[FEATURES]

    def _values_to_follow(self, obs: Observed, action: torch.Tensor) -> torch.Tensor:
        """The values ``[N, B]`` of its actions that the policy learns from; ``[1, B]`` if it follows their mean."""
        with frozen_statistics(self.critics):
            q: torch.Tensor = self.critics(obs, action)
        return q.mean(dim=0, keepdim=True) if self.config.follows_mean else q

    def _imitate(self, loss: torch.Tensor, q: torch.Tensor, action: torch.Tensor, batch: Batch) -> torch.Tensor:
        """The policy's loss, and what it pays for the distance of its actions ``[B, A]`` to the batch's actions.

        ``q`` ``[N, B]`` are the values of its actions.
        """
        weight = self.config.imitation
        return loss if weight is None else loss + weight * imitation_loss(q[0], action, batch["action"])

    def _is_actors_turn(self) -> bool:
        self._n_updates += 1
        return self._n_updates % self.config.policy_delay == 0


def _join(obs: Observed, next_obs: Observed) -> Observed:
    """Observations of B rows and the next ones as observations of 2 B rows."""
    if isinstance(obs, dict):
        assert isinstance(next_obs, dict)
        return {path: torch.cat((leaf, next_obs[path])) for path, leaf in obs.items()}
    assert isinstance(next_obs, torch.Tensor)
    return torch.cat((obs, next_obs))
