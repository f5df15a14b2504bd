"""A classifier of pictures, which estimates the probability that the task is done: its network and its file.

The file is a safetensors file. Its meta data have one entry ``reward_classifier``, the JSON of ``ClassifierFacts``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import torch
from pydantic import Field, NonNegativeInt
from torch import nn

from common.agents.networks import ConvNet
from common.agents.networks.layers import Head
from common.agents.networks.picture_networks import size_of
from common.data import Array
from common.depth import parse_json
from common.errors import CheckpointError, ConfigError
from common.hints import nearest_path
from common.settings import Settings, validate
from common.wire.tensor_file import read_metadata, read_tensors

METADATA: Final = "reward_classifier"
MAX_BYTES: Final = 256 << 20
"""The largest file that is read."""
N_FEATURES: Final = 64
"""Features of each picture, and of the layer that joins them."""
Share = Annotated[float, Field(ge=0, le=1)]


class ClassifierFacts(Settings):
    """The pictures that a classifier looks at, and measures of its quality."""

    pictures: dict[str, tuple[int, ...]] = Field(
        description="The shapes of the pictures by their paths in observations; the path of a single picture is empty."
    )
    threshold: Share = Field(description="A probability above this is a success.")
    accuracy: Share = Field(
        description="The mean of the shares of successes and of failures that it recognises in held-out episodes."
    )
    missed: Share = Field(description="The share of successes among the held-out pictures that it takes for failures.")
    false_alarms: Share = Field(
        description="The share of failures among the held-out pictures that it takes for successes."
    )
    successes: NonNegativeInt = Field(description="Pictures of success from which it has learnt.")
    failures: NonNegativeInt = Field(description="Pictures of failure from which it has learnt.")


class SuccessNet(nn.Module):
    """Convolutions over each picture, and two layers that join them.

    Args:
        shapes: of the pictures by path, as ``common.agents.networks.picture_networks`` takes them.

    Raises:
        ConfigError: a shape is not that of a picture.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        self._paths = tuple(sorted(shapes))
        self.encoders = nn.ModuleList(_make_encoder(shapes[path]) for path in self._paths)
        joint = nn.Linear(N_FEATURES * len(self._paths), N_FEATURES)
        self.layers = nn.Sequential(nn.ReLU(), joint, nn.ReLU(), Head(N_FEATURES, 1))

    def forward(self, pictures: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Logits of success ``[B]`` of pictures ``[B, *shape]`` in 0 to 255 by path."""
        features = [encode(pictures[path]) for encode, path in zip(self.encoders, self._paths, strict=True)]
        return self.layers(torch.cat(features, dim=1)).squeeze(1)  # type: ignore[no-any-return]


def _make_encoder(shape: tuple[int, ...]) -> ConvNet:
    """Convolutions that halve height and width until the shorter one has at most 8 pixels."""
    layers, side = [(32, 5, 2)], (min(size_of(shape)) - 5) // 2 + 1
    while side > 8:
        layers, side = [*layers, (32, 3, 2)], (side - 3) // 2 + 1
    return ConvNet(shape, N_FEATURES, layers, hidden=None)


@torch.inference_mode()
def estimate(net: SuccessNet, pictures: Mapping[str, Array]) -> Array:
    """The probabilities of success ``[B]``, float32, of pictures ``[B, *shape]`` uint8 by path."""
    tensors = {path: torch.from_numpy(np.ascontiguousarray(each)) for path, each in pictures.items()}
    found: Array = torch.sigmoid(net(tensors)).numpy()
    return found


class Classifier:
    """Computes the probability that observations show success."""

    def __init__(self, facts: ClassifierFacts, net: SuccessNet) -> None:
        self.facts, self.net = facts, net.eval()

    def probabilities(self, pictures: Mapping[str, Array]) -> Array:
        """See ``estimate``; ``pictures`` may have others too."""
        return estimate(self.net, {path: pictures[path] for path in self.facts.pictures})


def load_classifier(path: Path) -> Classifier:
    """Read the file of a classifier, as ``reward-train`` writes it.

    Raises:
        CheckpointError: the file cannot be read, or is no file of a classifier.
    """
    try:
        if not path.is_file():
            raise CheckpointError(f"{path}: expected the file of a reward classifier, found none{nearest_path(path)}")
        if (size := path.stat().st_size) > MAX_BYTES:
            raise CheckpointError(f"{path}: expected a reward classifier of at most {MAX_BYTES} bytes, found {size}")
        file = np.fromfile(path, np.uint8)
        tensors, metadata = read_tensors(file), read_metadata(file)
        if METADATA not in metadata:
            raise CheckpointError(f"{path}: expected a reward classifier, found a safetensors file of something else")
        facts = validate(ClassifierFacts, parse_json(metadata[METADATA]), METADATA)
        net = SuccessNet(facts.pictures)
        net.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in tensors.items()})
    except (OSError, ValueError, RuntimeError, ConfigError) as error:
        raise CheckpointError(f"{path}: cannot be read as a reward classifier: {error}") from error
    return Classifier(facts, net)
