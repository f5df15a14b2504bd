from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import gymnasium
import pytest

from common.errors import CheckpointError, ConfigError, PluginError, RunDirectoryError
from crossborder.policies import policy_eval, policy_export
from crossborder.policies.policy_command import make_policy_parser, policy_command_of
from learner.storage.checkpoint import Checkpoints, load_policy
from tests.learner.storage.test_checkpoint import CONFIG, dqn


def name_of_checkpoint(arguments: argparse.Namespace) -> Mapping[str, object]:
    if not (arguments.run / arguments.checkpoint).exists():
        raise CheckpointError(f"no {arguments.checkpoint}")
    return {"checkpoint": arguments.checkpoint, "score": 1.5}


def run(*words: str) -> int:
    parser = make_policy_parser("policy-any", "``policy-any``: names its checkpoint.", "  policy-any --run DIR\n")
    return policy_command_of(lambda: parser, name_of_checkpoint)([*words])


@pytest.mark.parametrize(
    ("present", "words", "expected"),
    [
        (["best", "final"], [], "best"),
        (["best", "final"], ["--checkpoint", "final"], "final"),
        (["final"], [], "final"),
        ([".best.old", "best", "final"], [], "best"),
    ],
)
def test_the_best_policy_is_used_or_the_final_one_if_there_is_no_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], present: list[str], words: list[str], expected: str
) -> None:
    for name in present:
        (tmp_path / name).mkdir()
    assert run("--run", str(tmp_path), *words) == 0
    told = capsys.readouterr()
    assert told.out == f"checkpoint: {expected}\nscore: 1.5\n"
    is_fallback = "best" not in present
    told_so = f"{tmp_path} has no best/, so the policy at the end of training, final/, is used" in told.err
    assert told_so == is_fallback


def test_a_directory_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--run", str(tmp_path / "none")) == RunDirectoryError.exit_code
    assert f"{tmp_path / 'none'}: expected a run's directory, found none" in capsys.readouterr().err


def test_the_option_best_uses_no_other_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "final").mkdir()
    assert run("--run", str(tmp_path), "--best") == CheckpointError.exit_code
    assert "policy-any: no best" in capsys.readouterr().err


def test_the_values_are_printed_as_one_json_object_when_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "best").mkdir()
    assert run("--run", str(tmp_path), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"checkpoint": "best", "score": 1.5}


@pytest.mark.parametrize("name", ["best", "final", "4000"])
def test_the_directory_of_a_checkpoint_names_both_the_run_and_the_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "meta.json").touch()
    monkeypatch.chdir(tmp_path / name)
    for place in (str(tmp_path / name), "."):
        assert run("--run", place) == 0
        assert run("--run", place, "--checkpoint", name) == 0
    assert capsys.readouterr().out == f"checkpoint: {name}\nscore: 1.5\n" * 4


def test_two_different_checkpoints_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "meta.json").touch()
    assert run("--run", str(tmp_path / "final"), "--best") == ConfigError.exit_code
    assert "names the checkpoint final, --checkpoint best another" in capsys.readouterr().err


THEIRS = """
import gymnasium
from pathlib import Path
Path(__file__).with_suffix(".imported").touch()
class Pole(gymnasium.Wrapper):
    metadata = {"render_modes": []} # Gymnasium 1.3 asks the class for it.
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
gymnasium.register("Theirs-v0", Pole)
"""
"""A module that leaves a file where it is imported."""


@pytest.fixture(
    params=[("theirs:Pole", {}), ("gymnasium:make", {"id": "theirs:Theirs-v0"})], ids=["by its place", "by its id"]
)
def their_policy(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Path, Path]]:
    """The run of a stranger's policy that names the module ``theirs``, and the file that its import leaves."""
    (tmp_path / "theirs.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(tmp_path)
    target, params = request.param
    env = CONFIG.env.model_copy(update={"target": target, "params": params})
    Checkpoints(tmp_path, CONFIG.model_copy(update={"env": env}), "run").save("best", dqn(seed=1), opt_steps=12)
    yield tmp_path, tmp_path / "theirs.imported"
    sys.modules.pop("theirs", None)
    gymnasium.registry.pop("Theirs-v0", None)


def test_a_policy_brings_no_code_that_the_user_has_not_allowed(
    their_policy: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run, imported = their_policy
    by_eval = partial(policy_eval.main, ["--run", str(run), "--episodes", "1"])
    by_export = partial(policy_export.main, ["--run", str(run), "--output", str(run / "policy.onnx")])
    for refused in (by_eval, by_export):
        assert refused() == 3
        told = capsys.readouterr().err
        assert f"the policy in {run / 'best'} names code that is not allowed: env." in told
        assert "if you trust it, say --allow theirs:" in told
    with pytest.raises(PluginError, match="say --allow theirs:"):
        load_policy(run / "best")
    assert not imported.exists()


@pytest.mark.parametrize("main", [policy_eval.main, policy_export.main])
def test_a_policy_uses_the_code_that_the_user_allows(
    their_policy: tuple[Path, Path], main: Callable[[list[str]], int]
) -> None:
    run, imported = their_policy
    more = ["--output", str(run / "policy.onnx")] if main is policy_export.main else ["--episodes", "1"]
    assert main(["--run", str(run), "--allow", "theirs", *more]) == 0
    assert imported.exists()
