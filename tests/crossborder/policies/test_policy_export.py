from __future__ import annotations

import json
import sys
from pathlib import Path

import gymnasium
import numpy as np
import onnxruntime
import pytest

from crossborder.policies import policy_export
from learner.storage.checkpoint import Checkpoints
from tests.learner.storage.test_checkpoint import CONFIG, OBS, dqn, save_own_parts


def test_a_saved_policy_becomes_a_file_that_says_where_it_comes_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent, file = dqn(seed=5), tmp_path / "policy.onnx"
    Checkpoints(tmp_path, CONFIG, "run-id").save("final", agent, opt_steps=12)
    assert policy_export.main(["--run", str(tmp_path), "--checkpoint", "final", "--output", str(file), "--json"]) == 0
    session = onnxruntime.InferenceSession(file)
    np.testing.assert_array_equal(session.run(None, {"obs": OBS})[0], agent.sample(OBS))
    metadata = session.get_modelmeta().custom_metadata_map
    assert (metadata["run_id"], metadata["checkpoint"], metadata["opt_steps"]) == ("run-id", "final", "12")
    assert json.loads(metadata["env"])["params"] == {"id": "CartPole-v1"}
    assert metadata["agent"] == "common.agents.dqn:DQN"
    assert metadata["action_space"] == str(gymnasium.spaces.Discrete(2))
    tensors = {"inputs": "obs float32 [batch, 4]", "outputs": "action int64 [batch]"}
    assert json.loads(capsys.readouterr().out) == {"output": str(file), **tensors, **metadata}


def test_an_agent_that_offers_no_policy_is_refused_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_own_parts(tmp_path)
    words = ["--run", str(tmp_path), "--allow", "examples", "--output", str(tmp_path / "policy.onnx")]
    assert policy_export.main(words) == 3
    assert "TabularQ offers no policy(): return its greedy policy as a torch.nn.Module" in capsys.readouterr().err


def test_without_onnx_it_names_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "crossborder.policies.export", raising=False)
    save_own_parts(tmp_path)
    assert policy_export.main(["--run", str(tmp_path), "--output", str(tmp_path / "policy.onnx")]) == 3
    assert "pip install 'crossborder[export]'" in capsys.readouterr().err
