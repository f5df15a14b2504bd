"""Writes the file of a reward classifier, which ``crossborder.rewards.classifier`` reads."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save

from common.errors import CheckpointError
from crossborder.rewards.classifier import METADATA, Classifier
from learner.shared.durable import replace_bytes


def save_classifier(classifier: Classifier, path: Path) -> None:
    """Write a classifier to one file, whole or not at all.

    Raises:
        CheckpointError: it cannot be written.
    """
    tensors = {name: tensor.contiguous() for name, tensor in classifier.net.state_dict().items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_bytes(path, save(tensors, {METADATA: classifier.facts.model_dump_json()}))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error}") from error
