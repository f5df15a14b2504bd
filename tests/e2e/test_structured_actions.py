"""Actions with a discrete and a continuous leaf, from actors over the network to a policy that is loaded again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crossborder.policies import policy_eval
from learner.loop.server import train_async
from learner.storage.checkpoint import load_policy
from tests.common.agents.test_structured_actions import THROWN_WELL, throwing
from tests.parts import Throws


def test_actors_learn_to_throw_and_the_saved_policy_throws_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = train_async(throwing(tmp_path / "run"), local_actors=2)
    assert result.best_score is not None
    assert result.best_score >= THROWN_WELL
    assert policy_eval.main(["--run", str(result.run_dir), "--best", "--json", "--allow", "tests"]) == 0
    assert json.loads(capsys.readouterr().out)["eval_reward"] == pytest.approx(result.best_score)
    policy, env = load_policy(result.run_dir / "best", ["tests"]), Throws()
    obs, thrown = env.reset(seed=7)[0], 0.0
    for _ in range(10):
        obs, reward, *_ = env.step(policy(obs))
        thrown += reward
    assert thrown >= THROWN_WELL - 1
