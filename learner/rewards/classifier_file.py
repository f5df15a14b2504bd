"""Writes the file of a reward classifier, which ``common.rewards.classifier`` reads."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save

from common.errors import CheckpointError
from common.rewards.classifier import METADATA, Classifier
from learner.shared.durable import sync


def save_classifier(classifier: Classifier, path: Path) -> None:
    """Write a classifier to one file, whole or not at all.

    Raises:
        CheckpointError: it cannot be written.
    """
    tensors = {name: tensor.contiguous() for name, tensor in classifier.net.state_dict().items()}
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_bytes(save(tensors, {METADATA: classifier.facts.model_dump_json()}))
            sync(part)
            part.rename(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error}") from error
