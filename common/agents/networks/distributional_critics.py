"""Forms in which critics learn the distribution of the return. Shapes: N critics, B batch, K outputs of a critic."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeInt, model_validator

from common.agents.losses.distributions import categorical_loss, project, quantile_huber_loss
from common.agents.losses.values import CriticLoss, weighted_mean
from common.agents.networks.critics import Returns, ScalarReturn
from common.settings import Settings

AtLeastTwo = Annotated[int, Field(ge=2)]


class CategoricalReturn(Settings):
    """Critics learn the probabilities of evenly spaced returns (C51, arXiv:1707.06887; FastTD3, arXiv:2505.22642)."""

    kind: Literal["categorical"] = Field(
        "categorical", description="Critics predict the probabilities of evenly spaced returns."
    )
    v_min: float = Field(description="The least return, in units of scaled rewards; lower returns count as this one.")
    v_max: float = Field(
        description="The greatest return, in units of scaled rewards; higher returns count as this one."
    )
    n_atoms: AtLeastTwo = Field(101, description="The number of evenly spaced returns, v_min and v_max included.")

    @model_validator(mode="after")
    def _limits_in_order(self) -> CategoricalReturn:
        if self.v_min >= self.v_max:
            raise ValueError(f"v_min ({self.v_min}) must be below v_max ({self.v_max})")
        return self

    @property
    def n_outputs(self) -> int:
        return self.n_atoms

    def value(self, outputs: torch.Tensor) -> torch.Tensor:
        """The values ``[N, B]`` of logits ``[N, B, K]``."""
        return (outputs.softmax(dim=2) * self._atoms(outputs)).sum(dim=2)

    def following(self, outputs: torch.Tensor, *, least: bool) -> Returns:
        """The returns after the next observation: of the critic whose mean is least, or of each critic."""
        atoms, probability = self._atoms(outputs), outputs.softmax(dim=2)
        return Returns(atoms[:, None], least_distribution(probability, atoms) if least else probability)

    def expected(self, target: Returns) -> torch.Tensor:
        """The means of targets, ``[B]`` or ``[N, B]``."""
        assert target.probability is not None
        atoms = target.values.T  # [B, K]
        return (target.probability * atoms.clamp(self.v_min, self.v_max)).sum(dim=-1)

    def loss(
        self,
        outputs: torch.Tensor,
        target: Returns,
        kind: CriticLoss,  # noqa: ARG002 - distributions have one loss
        weight: torch.Tensor | None,
    ) -> torch.Tensor:
        """The mean cross-entropy of logits ``[N, B, K]``, weighted if there are weights ``[B]``."""
        assert target.probability is not None
        projected = project(target.probability, target.values.T, self._atoms(outputs))  # [B, K] or [N, B, K]
        return weighted_mean(categorical_loss(outputs.log_softmax(dim=2), projected), weight)

    def _atoms(self, like: torch.Tensor) -> torch.Tensor:
        return torch.linspace(self.v_min, self.v_max, self.n_atoms, device=like.device)


class QuantileReturn(Settings):
    """Critics learn quantiles, and targets leave out the greatest ones of all critics (TQC, arXiv:2005.04269)."""

    kind: Literal["quantile"] = Field("quantile", description="Critics predict quantiles of the return.")
    n_quantiles: AtLeastTwo = Field(25, description="The number of quantiles that each critic predicts.")
    n_dropped: NonNegativeInt = Field(
        2, description="The number of the greatest quantiles that targets leave out, per critic (TQC)."
    )

    @model_validator(mode="after")
    def _some_are_left(self) -> QuantileReturn:
        if self.n_dropped >= self.n_quantiles:
            raise ValueError(f"n_dropped ({self.n_dropped}) must be below n_quantiles ({self.n_quantiles})")
        return self

    @property
    def n_outputs(self) -> int:
        return self.n_quantiles

    def value(self, outputs: torch.Tensor) -> torch.Tensor:
        """The values ``[N, B]`` of quantiles ``[N, B, K]``."""
        return outputs.mean(dim=2)

    def following(self, outputs: torch.Tensor, *, least: bool) -> Returns:  # noqa: ARG002 - the least quantiles count
        """The returns after the next observation: all critics' quantiles without the greatest ones, ``[K', B]``."""
        return Returns(least_quantiles(outputs, self.n_dropped))

    def expected(self, target: Returns) -> torch.Tensor:
        """The means of targets, ``[B]``."""
        return target.values.mean(dim=0)

    def loss(
        self,
        outputs: torch.Tensor,
        target: Returns,
        kind: CriticLoss,  # noqa: ARG002 - quantiles have one loss
        weight: torch.Tensor | None,
    ) -> torch.Tensor:
        """The mean quantile Huber loss of quantiles ``[N, B, K]``, weighted if there are weights ``[B]``."""
        n_critics, n, n_quantiles = outputs.shape
        middles = (torch.arange(n_quantiles, device=outputs.device) + 0.5) / n_quantiles
        prediction = outputs.permute(2, 0, 1).flatten(1)  # [K, N * B]
        repeated = target.values.repeat(1, n_critics)  # [K', N * B]
        loss = quantile_huber_loss(prediction, repeated, middles[:, None], 1.0).view(n_critics, n)
        return weighted_mean(loss, weight)


CriticReturn = Annotated[ScalarReturn | CategoricalReturn | QuantileReturn, Field(discriminator="kind")]


def least_distribution(
    probability: torch.Tensor,  # [N, B, K]
    atoms: torch.Tensor,  # [K]
) -> torch.Tensor:
    """For each item the distribution of the critic whose mean is least, ``[B, K]``.

    It is clipped double Q-learning (arXiv:1802.09477) of distributions, as in FastTD3's authors' code
    (arXiv:2505.22642).
    """
    least = (probability * atoms).sum(dim=2).argmin(dim=0)  # [B]
    return probability.take_along_dim(least[None, :, None], dim=0).squeeze(0)


def least_quantiles(
    quantiles: torch.Tensor,  # [N, B, K]
    n_dropped: int,
) -> torch.Tensor:
    """All critics' quantiles in one mixture, without its ``N * n_dropped`` greatest ones, ``[N * (K - n_dropped), B]``.

    They come in no particular order. This is how TQC keeps values from being overestimated (arXiv:2005.04269, 11).
    """
    n_critics, _, n_quantiles = quantiles.shape
    mixture = quantiles.transpose(0, 1).flatten(1)  # [B, N * K]
    n_kept = n_critics * (n_quantiles - n_dropped)
    return mixture.topk(n_kept, largest=False, sorted=False).values.T
