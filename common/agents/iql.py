"""IQL: implicit Q-learning (arXiv:2110.06169), which never evaluates an action that is not in the data."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field

from common.agents.awac import AdvantageWeighted, AdvantageWeightedConfig
from common.agents.losses.offline_losses import expectile_loss
from common.agents.losses.values import least_value
from common.agents.machinery.gradient_step import Batch, descend
from common.agents.machinery.update import Results
from common.agents.networks.layers import Observed
from common.interfaces import EnvSpec
from common.spaces import from_columns


class IQLConfig(AdvantageWeightedConfig):
    """``agent.params`` of ``IQL``."""

    tau_iql: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.7,
        description="The expectile of the actions' values that the state's value learns; near 1, it is the value of "
        "the best action in the data.",
    )


class IQL(AdvantageWeighted):
    """A value network learns a high expectile of the critics over the data; the critics bootstrap from it.

    Arguments and errors are those of ``ActorCritic``; params: see ``IQLConfig``.
    """

    Config = IQLConfig
    config: IQLConfig

    def __init__(self, spec: EnvSpec, **given: Any) -> None:
        super().__init__(spec, **given)
        self.value = self._make_network(self._critic_leaves, 1).to(self.device)
        self.nets["value"] = self.value
        self._value_optimizer = self._optimize(self.value)

    def _improve_critics(self, batch: Batch) -> Results:
        return self._improve_value(batch) | super()._improve_critics(batch)

    def _improve_value(self, batch: Batch) -> Results:
        advantage = self._advantage(from_columns("obs", batch), batch["action"])  # [B]
        loss = expectile_loss(advantage, self.config.tau_iql, batch.get("weight"))
        descend(loss, self._value_optimizer, self.config.max_grad_norm)
        return {"loss_value": loss.detach()}

    def _next_value(self, next_obs: Observed) -> torch.Tensor:
        return self.value(next_obs).squeeze(1)  # type: ignore[no-any-return]

    def _advantage(self, obs: Observed, action: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            q = least_value(self.critics_tgt(obs, action))  # [B]
        return q - self.value(obs).squeeze(1)  # type: ignore[no-any-return]
