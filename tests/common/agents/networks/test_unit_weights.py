from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from common.agents.iql import IQL
from common.agents.networks.batch_norm import BatchRenorm
from common.agents.networks.blocks import LayersConfig
from common.agents.networks.unit_weights import scale_to_unit
from common.agents.sac import SAC
from common.data import Array
from common.interfaces import EnvSpec
from common.settings import validate
from tests.common.agents.parts import CATEGORICAL, holding

SPEC = EnvSpec(spaces.Box(-1, 1, (2,), np.float32), spaces.Box(-1, 1, (1,), np.float32))


def norms_of_rows(net: nn.Module) -> Array:
    layers = [layer for layer in net.modules() if isinstance(layer, nn.Linear)]
    return np.concatenate([layer.weight.detach().norm(dim=1).numpy() for layer in layers])


def test_weights_are_divided_by_the_norm_of_each_unit_and_gains_by_their_norm_with_biases() -> None:
    parts = (nn.Linear(3, 4), BatchRenorm(4), nn.LayerNorm(4), nn.RMSNorm(4))
    net, generator = nn.Sequential(*parts), torch.Generator().manual_seed(0)
    for parameter in net.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    before = {name: values.detach().double().numpy().copy() for name, values in net.named_parameters()}
    scale_to_unit(net)
    found = {name: values.detach().numpy() for name, values in net.named_parameters()}
    weight = before["0.weight"]
    np.testing.assert_allclose(found["0.weight"], [row / np.sqrt((row**2).sum()) for row in weight], rtol=1e-5)
    np.testing.assert_array_equal(found["0.bias"], before["0.bias"])
    for i in (1, 2):
        gain, bias = before[f"{i}.weight"], before[f"{i}.bias"]
        factor = np.sqrt(4 / (np.square(gain).sum() + np.square(bias).sum()))
        np.testing.assert_allclose(found[f"{i}.weight"], gain * factor, rtol=1e-5)
        np.testing.assert_allclose(found[f"{i}.bias"], bias * factor, rtol=1e-5)
    np.testing.assert_allclose(np.square(found["3.weight"]).sum(), 4, rtol=1e-5)


def test_parameters_that_are_not_trained_stay() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)).requires_grad_(False)
    for values in net.parameters():
        values.fill_(2.0)
    scale_to_unit(net)
    assert all((values == 2.0).all() for values in net.parameters())


def test_a_network_begins_with_unit_weights() -> None:
    net = validate(LayersConfig, {"normalization": "layer", "unit_weights": True}).build(3, 2, (8,))
    np.testing.assert_allclose(norms_of_rows(net), 1, rtol=1e-5)


@pytest.mark.parametrize("layers", [{"architecture": "flash"}, {"architecture": "simba"}, {"normalization": "batch"}])
@pytest.mark.parametrize("update", ["eager", "captured"])
@pytest.mark.parametrize("kind", [SAC, IQL])
def test_each_step_of_each_network_leaves_unit_weights(
    kind: type[SAC | IQL], update: str, layers: dict[str, Any]
) -> None:
    critic = CATEGORICAL if kind is SAC else {}
    agent = kind(SPEC, seed=0, units=(8,), batch_size=4, unit_weights=True, update=update, **layers, **critic)
    nets = {name: net for name, net in agent.nets.items() if name in ("actor", "critics", "value")}
    rows = [(np.full(2, x, np.float32), (x,), x, np.zeros(2, np.float32), False, False) for x in (-0.5, 0.1, 0.7)]
    for _ in range(5):
        for name, net in nets.items():
            np.testing.assert_allclose(norms_of_rows(net), 1, rtol=1e-5, err_msg=name)
        agent.opt(holding(rows, np.float32))
