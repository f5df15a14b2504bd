from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.learner.ranks.pair import ALPHA, BETA, ERRORS, slow_weights

Pair = Sequence[dict[str, Any]]


def test_weights_are_those_of_one_replay_of_all_shards(pair: Pair) -> None:
    for rank, found in enumerate(pair):
        index = np.array(found["weights"]["all"]["index"])
        assert len(index) == 6, "each rank draws half of the batch of 12"
        expected = slow_weights(ERRORS, rank, index, "all")
        np.testing.assert_allclose(found["weights"]["all"]["weight"], expected, rtol=1e-5)


def test_normalised_over_the_batch_the_greatest_weight_of_all_ranks_is_1(pair: Pair) -> None:
    chances = []
    for rank, found in enumerate(pair):
        priorities = np.array(ERRORS[rank]) ** ALPHA
        chances.append((priorities / priorities.sum())[found["weights"]["batch"]["index"]])
    least = min(map(np.min, chances))
    for found, chance in zip(pair, chances, strict=True):
        np.testing.assert_allclose(found["weights"]["batch"]["weight"], (least / chance) ** BETA, rtol=1e-5)
    assert max(max(found["weights"]["batch"]["weight"]) for found in pair) == 1.0


def test_a_share_that_was_drawn_while_another_rank_had_nothing_is_kept_for_the_next_turn(pair: Pair) -> None:
    assert [found["waits"] for found in pair] == [
        {"tries": 2, "sampled": 2, "elsewhere": 11},
        {"tries": 2, "sampled": 2, "elsewhere": 10},
    ]


def test_all_ranks_go_on_with_the_count_of_updates_of_rank_0(pair: Pair) -> None:
    assert [found["updates"] for found in pair] == [1, 1]
