"""Actions with a discrete and a continuous leaf, from actors over the network to a policy that is loaded again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from crossborder.policies import policy_eval
from learner.loop.server import train_async
from learner.storage.checkpoint import load_policy
from tests.common.agents.test_structured_actions import throwing
from tests.parts import Throws
from tests.stored import stored_rows


def test_both_leaves_of_each_action_arrive_and_the_saved_policy_throws_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That they are learnt from is shown in turns, in tests/common/agents/test_structured_actions.py."""
    result = train_async(throwing(tmp_path / "run", trainer={"max_opts": 40, "target_score": None}), local_actors=2)
    rows = stored_rows(result.run_dir)
    steps = ~rows["final"]
    (side, place), hand, far = rows["obs"][steps].T, rows["action/hand"][steps], rows["action/far"][steps, 0]
    earned = np.where(hand == np.where(side > 0, 2, 1), np.maximum(0, 1 - abs(far - (2 + place))), 0)
    np.testing.assert_allclose(rows["reward"][steps], earned, atol=1e-6)
    assert (earned > 0).sum() > 100
    words = ["--run", str(result.run_dir), "--best", "--json", "--allow", "tests"]
    assert policy_eval.main(words) == 0
    assert json.loads(capsys.readouterr().out)["eval_reward"] == pytest.approx(result.best_score)
    assert policy_eval.main([*words, "--episodes", "1", "--seed", "7"]) == 0
    policy, env = load_policy(result.run_dir / "best", ["tests"]), Throws()
    obs, thrown = env.reset(seed=7)[0], 0.0
    for _ in range(10):
        obs, reward, *_ = env.step(policy(obs))
        thrown += reward
    assert json.loads(capsys.readouterr().out)["eval_reward"] == pytest.approx(thrown)
