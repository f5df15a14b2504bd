"""Networks. A user's own network is any callable ``module:attr`` that returns a ``torch.nn.Module``.

A configuration names the networks of this list as ``common.agents.networks:NatureCnn``.
"""

from common.agents.networks.discrete_actions import AllowedActions
from common.agents.networks.layers import Head, Linear, Mlp, Observed
from common.agents.networks.picture_networks import ConvNet, ImpalaCnn, NatureCnn

__all__ = ["AllowedActions", "ConvNet", "Head", "ImpalaCnn", "Linear", "Mlp", "NatureCnn", "Observed"]
