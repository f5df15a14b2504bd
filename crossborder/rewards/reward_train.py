"""``reward-train``: trains a classifier on labelled pictures, which then rewards success in the place of a person."""

from __future__ import annotations

import argparse

from common.config.run_config import MAX_SEED
from common.process.command import Parser, as_output, as_path, at_least, command_of, positive
from common.process.standard_streams import answers

EXAMPLES = """\
  reward-train --dataset labelled/ --output reward.safetensors
  reward-train --dataset labelled/ more/ --key camera --output reward.safetensors    use one of several cameras

The wrapper crossborder.rewards.reward_classifier:RewardClassifier uses the file: see docs/people.md.
"""


def parser() -> Parser:
    """The command's options."""
    made = Parser("reward-train", __doc__, EXAMPLES)
    made.add_argument(
        "--dataset",
        required=True,
        nargs="+",
        type=as_path,
        metavar="DIR",
        help="directories of labelled episodes (.npz)",
    )
    made.add_value("--output", "FILE", "the file that gets the classifier", as_output, is_required=True)
    made.add_argument(
        "--key",
        nargs="+",
        default=[],
        help="the paths in observations of the pictures that the classifier sees (default: all pictures)",
    )
    made.add_value("--threshold", "P", "the probability above which an observation is a success", _share, default=0.5)
    made.add_value("--steps", "N", "training steps", at_least(1), default=1000)
    made.add_value("--seed", "N", "the seed of training", at_least(0, MAX_SEED), default=0)
    made.add_value("--threads", "N", "threads of torch", at_least(1), default=1)
    return made


def _share(text: str) -> float:
    value = positive(text)
    if value >= 1:
        raise argparse.ArgumentTypeError(f"expected a number between 0 and 1, found '{text}'")
    return value


def _train(arguments: argparse.Namespace) -> None:
    import torch

    from crossborder.rewards.labelled_pictures import read_labelled
    from crossborder.rewards.training import save_classifier, train_classifier

    torch.set_num_threads(arguments.threads)
    episodes = read_labelled(arguments.dataset, arguments.key)
    trained = train_classifier(episodes, threshold=arguments.threshold, steps=arguments.steps, seed=arguments.seed)
    save_classifier(trained, arguments.output)
    facts = trained.facts
    pictures = ", ".join(f"{path or 'obs'} {list(shape)}" for path, shape in facts.pictures.items())
    answers().write(
        f"learnt from {facts.successes:,} pictures of success and {facts.failures:,} of failure: {pictures}\n"
        f"held-out episodes: accuracy {facts.accuracy:.1%}, missed {facts.missed:.1%} of successes, "
        f"false alarms at {facts.false_alarms:.1%} of failures\n"
        f"written: {arguments.output}\n"
    )


main = command_of(parser, _train)
