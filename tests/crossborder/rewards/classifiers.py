"""Classifiers that nobody has trained."""

from __future__ import annotations

from pathlib import Path

import torch

from crossborder.rewards.classifier import Classifier, ClassifierFacts, SuccessNet
from crossborder.rewards.training import save_classifier


def untrained(shapes: dict[str, tuple[int, ...]], threshold: float = 0.5) -> Classifier:
    """A classifier of the weights with which training begins."""
    facts = ClassifierFacts(
        pictures=shapes, threshold=threshold, accuracy=0.5, missed=0, false_alarms=1, successes=0, failures=0
    )
    return Classifier(facts, SuccessNet(shapes))


def brightness_file(path: Path, shapes: dict[str, tuple[int, ...]]) -> Path:
    """The file of a classifier to which bright pictures are a success and dark ones are not."""
    classifier = untrained(shapes)
    with torch.no_grad():
        for parameter in classifier.net.parameters():
            parameter.fill_(0.01)
        *_, last = classifier.net.layers
        assert isinstance(last, torch.nn.Linear)
        dark, bright = (_logit(classifier, shapes, value) for value in (0.0, 255.0))
        last.weight.mul_(20 / (bright - dark))
        last.bias.fill_(0.0)
        last.bias.fill_(-(_logit(classifier, shapes, 0.0) + _logit(classifier, shapes, 255.0)) / 2)
    save_classifier(classifier, path)
    return path


def _logit(classifier: Classifier, shapes: dict[str, tuple[int, ...]], value: float) -> float:
    return float(classifier.net({path: torch.full((1, *shape), value) for path, shape in shapes.items()})[0])
