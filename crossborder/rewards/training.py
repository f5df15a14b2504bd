"""Trains a reward classifier on labelled pictures, measures it on other episodes, and writes its file."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
from safetensors.torch import save

from common.agents.machinery.optimizers import AdamWConfig, build_optimizer
from common.agents.networks.picture_networks import shift, size_of
from common.agents.tensor_copies import copy_to_cpu
from common.data import Array
from common.errors import CheckpointError, DatasetError
from crossborder.rewards.classifier import METADATA, Classifier, ClassifierFacts, SuccessNet, estimate
from crossborder.rewards.labelled_pictures import LabelledEpisode
from learner.shared.durable import replace_bytes

log = logging.getLogger(__name__)
HELD_OUT: Final = 0.2
"""The share of the episodes that measure a classifier; it does not learn from them."""
BATCH_SIZE: Final = 64
LEARNING_RATE: Final = 1e-3
WEIGHT_DECAY: Final = 1e-4
SHIFT: Final = 1 / 21
"""How far pictures are shifted at random, in parts of the shorter side: 4 of 84 pixels, as DrQ does."""
BRIGHTNESS: Final = 0.2
"""By how much pictures become brighter or darker at random."""
LOG_INTERVAL: Final = 100
CHUNK: Final = 256
"""Pictures that are classified at once."""


def train_classifier(
    episodes: Sequence[LabelledEpisode],
    *,
    threshold: float = 0.5,
    steps: int = 1000,
    seed: int = 0,
) -> Classifier:
    """Train a classifier on four fifths of the episodes.

    Half of each batch are pictures of success. Pictures are shifted and made brighter or darker at random, so that the
    network does not learn single pixels by heart.

    Args:
        episodes: see ``read_labelled``.
        threshold: a probability above this is a success.
        steps: of the optimiser.
        seed: of the weights, the batches, and the choice of the episodes that are held out.

    Raises:
        DatasetError: there are too few episodes with and without success to learn and to measure.
    """
    random = np.random.default_rng(seed)
    learnt, held_out = _split(episodes, random)
    shapes = {path: pictures.shape[1:] for path, pictures in episodes[0].pictures.items()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = SuccessNet(shapes)
        _train(net, learnt, steps, random)
    probability = _probabilities(net, held_out)
    is_success = np.concatenate([episode.is_success for episode in held_out])
    missed = float(np.mean(probability[is_success] <= threshold))
    false_alarms = float(np.mean(probability[~is_success] > threshold))
    successes = int(sum(np.count_nonzero(episode.is_success) for episode in learnt))
    facts = ClassifierFacts(
        pictures=shapes,
        threshold=threshold,
        accuracy=1 - (missed + false_alarms) / 2,
        missed=missed,
        false_alarms=false_alarms,
        successes=successes,
        failures=sum(len(episode.is_success) for episode in learnt) - successes,
    )
    return Classifier(facts, net)


def _split(
    episodes: Sequence[LabelledEpisode], random: np.random.Generator
) -> tuple[list[LabelledEpisode], list[LabelledEpisode]]:
    """The episodes to learn from, and those that are held out; both have successes and failures."""
    learnt: list[LabelledEpisode] = []
    held_out: list[LabelledEpisode] = []
    for succeeds in (True, False):
        group = [episode for episode in episodes if episode.succeeds is succeeds]
        order = [group[i] for i in random.permutation(len(group))]
        n_held_out = max(1, round(HELD_OUT * len(group))) if len(group) > 1 else 0
        held_out += order[:n_held_out]
        learnt += order[n_held_out:]
    for part in (learnt, held_out):
        labels = np.concatenate([episode.is_success for episode in part]) if part else np.zeros(0, bool)
        if not labels.any() or labels.all():
            n_successes = sum(episode.succeeds for episode in episodes)
            raise DatasetError(
                "expected at least 2 episodes with pictures of success, and pictures of failure in 2 episodes, found "
                f"{n_successes} with success among {len(episodes)} episodes; record and label more"
            )
    return learnt, held_out


def _train(net: SuccessNet, episodes: Sequence[LabelledEpisode], steps: int, random: np.random.Generator) -> None:
    """Train a network on random batches, half of which are pictures of success."""
    places = {label: _find_places(episodes, label=label) for label in (True, False)}
    labels = np.arange(BATCH_SIZE) % 2 == 0
    targets = torch.from_numpy(labels.astype(np.float32))
    optimizer = build_optimizer(net.parameters(), LEARNING_RATE, AdamWConfig(weight_decay=WEIGHT_DECAY))
    net.train()
    for step in range(1, steps + 1):
        chosen = [places[bool(label)][random.integers(len(places[bool(label)]))] for label in labels]
        logits = net({path: _disturb(_gather(episodes, chosen, path)) for path in episodes[0].pictures})
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % LOG_INTERVAL == 0:
            log.info("step %d of %d: loss %.4f", step, steps, loss.item())


def _find_places(episodes: Sequence[LabelledEpisode], *, label: bool) -> Array:
    """The episode and the step of each picture with this label, ``[n, 2]``."""
    found = [
        np.stack([np.full(np.count_nonzero(at), i), np.flatnonzero(at)], axis=1)
        for i, episode in enumerate(episodes)
        if (at := episode.is_success == label).any()
    ]
    return np.concatenate(found)


def _gather(episodes: Sequence[LabelledEpisode], places: Sequence[Array], path: str) -> torch.Tensor:
    return torch.from_numpy(np.stack([episodes[i].pictures[path][t] for i, t in places]))


def _disturb(pictures: torch.Tensor) -> torch.Tensor:
    """Pictures ``[B, *shape]`` uint8 as floats in 0 to 255, shifted and made brighter or darker at random."""
    pixels = max(1, round(SHIFT * min(size_of(pictures.shape[1:]))))
    shifted = shift(pictures, torch.randint(2 * pixels + 1, (2, len(pictures))), pixels).float()
    factor = 1 + BRIGHTNESS * (2 * torch.rand(len(pictures)) - 1)
    return (shifted * factor.view(-1, *[1] * (pictures.dim() - 1))).clamp(0, 255)


def _probabilities(net: SuccessNet, episodes: Sequence[LabelledEpisode]) -> Array:
    """The probability of success of each picture, one episode after another."""
    net.eval()
    found = []
    for episode in episodes:
        for begin in range(0, len(episode.is_success), CHUNK):
            chunk = slice(begin, begin + CHUNK)
            found.append(estimate(net, {path: column[chunk] for path, column in episode.pictures.items()}))
    return np.concatenate(found)


def save_classifier(classifier: Classifier, path: Path) -> None:
    """Write a classifier to one file, whole or not at all.

    Raises:
        CheckpointError: it cannot be written.
    """
    tensors = copy_to_cpu(classifier.net.state_dict())
    try:
        replace_bytes(path, save(tensors, {METADATA: classifier.facts.model_dump_json()}))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error}") from error
