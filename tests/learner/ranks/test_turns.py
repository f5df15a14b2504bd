from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Pair = Sequence[dict[str, Any]]


def test_a_rank_that_ends_training_ends_it_for_all_with_the_same_reason_and_nobody_asks_again(pair: Pair) -> None:
    assert [found["ending"] for found in pair] == [[None, 3, None]] * 2


def test_a_rank_that_fails_is_named_to_the_others(pair: Pair) -> None:
    assert pair[0]["failed"] == "RankLostError: rank 0 of 2: rank 1 has failed; its log says why"
    assert not pair[1]["failed"], "it has its own error"


def test_ranks_at_other_opt_steps_are_refused(pair: Pair) -> None:
    for rank, found in enumerate(pair):
        assert found["other_step"].startswith(
            f"RankLostError: rank {rank} of 2: expected all ranks at the same opt step"
        )
        assert "found [1, 2]" in found["other_step"]


def test_models_that_differ_may_come_of_an_agent_of_the_users_or_of_other_processors(pair: Pair) -> None:
    for found in pair:
        assert found["other_model"].startswith("PluginError: agent.target: opt step 1: expected the same model")
        assert "need processors or GPUs of the same kind, and the same release of torch" in found["other_model"]
