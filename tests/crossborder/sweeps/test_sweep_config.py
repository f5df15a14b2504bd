from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError
from crossborder.sweeps.sweep_config import ScoreConfig, base_config, first_config, load_sweep, warn_of_unequal_steps
from tests.conftest import ROOT
from tests.crossborder.sweeps.worth import WORTH, give_mirror, make_sweep, write_sweep


@pytest.mark.parametrize(
    ("take", "direction", "score"),
    [("last", "maximize", 2), ("mean", "maximize", 4), ("best", "maximize", 9), ("best", "minimize", 1)],
)
def test_the_score_of_a_run_is_its_last_value_their_mean_or_the_best(take: Any, direction: Any, score: float) -> None:
    assert ScoreConfig(take=take, direction=direction).of([1.0, 9.0, 2.0]) == score


def test_a_grid_has_a_trial_for_each_combination_and_every_trial_has_all_seeds(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, space={"a": [1, 2], "b": [1, 2, 3]}, seeds=[4, 5])
    assert (sweep.is_grid, sweep.n_trials, sweep.seeds_of({"a": 1, "b": 1})) == (True, 6, (4, 5))


def test_without_a_space_each_seed_is_a_trial(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, space={}, sampler="tpe", seeds=[4, 5, 6])
    assert (sweep.is_grid, sweep.n_trials, sweep.seeds_of({"seed": 5})) == (True, 3, (5,))


def test_a_grid_takes_no_range(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="grid takes lists, found a range for lr"):
        make_sweep(tmp_path, space={"lr": {"log": [1, 2]}, "units": [1]})


def test_chosen_values_go_before_fixed_ones_and_those_before_the_file(tmp_path: Path) -> None:
    fixed = {"trainer.max_opts": 40, "trainer.target_score": 1e-05, WORTH: 7.0}
    sweep = make_sweep(tmp_path, fixed=fixed)
    base, first = base_config(sweep), first_config(sweep)
    assert (base.trainer.max_opts, base.trainer.target_score, base.run_dir) == (40, 1e-05, None)
    assert (base.evaluator.params["worth"], first.evaluator.params["worth"]) == (7.0, 1.0)


def test_runs_have_no_mirror_since_each_would_need_its_own(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    give_mirror(sweep, f"file://{tmp_path}/mirror")
    for config in (base_config(sweep), first_config(sweep)):
        assert (config.storage.mirror, config.storage.acknowledge) == (None, "disk")


@pytest.mark.parametrize("place", ["fixed", "space"])
def test_a_mirror_of_the_sweep_itself_is_refused(tmp_path: Path, place: str) -> None:
    url = f"file://{tmp_path}/mirror"
    sweep = make_sweep(tmp_path, **{place: {"storage.mirror": url if place == "fixed" else [url]}})
    with pytest.raises(
        ConfigError, match=r"storage\.mirror: expected none in a sweep, found one: each run needs a mirror"
    ):
        first_config(sweep)


def test_learner_servers_beside_each_other_listen_on_free_ports(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, command="learner-server", fixed={"metrics.listen": None})
    base = base_config(sweep)
    assert (base.server.listen, base.metrics.listen) == ("127.0.0.1:0", None)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"space": {"lr": {"lgo": [1, 2]}}}, "space: .*lr: unknown range 'lgo'"),
        ({"sede": [1]}, r"sede: unknown key \(did you mean 'seed"),
        ({"seeds": []}, "seeds"),
        ({"seeds": [1, 2], "space": {"seed": [0, 1]}}, "space: expected no seed beside seeds"),
        ({"seeds": [0, 1, 0]}, "seeds: .*expected different seeds"),
        (
            {"space": {"lr": [0.1, 0.2], "units": [[8], [8]]}},
            "lists of different values, found .* units twice",
        ),
    ],
)
def test_a_wrong_sweep_is_refused_with_the_place(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        make_sweep(tmp_path, **changes)


def test_a_setting_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, space={"trainer.max_opt": [1]})
    with pytest.raises(ConfigError, match=r"trainer\.max_opt: unknown key \(did you mean 'max_opts'\?\)"):
        first_config(sweep)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    path = write_sweep(tmp_path)
    with pytest.raises(ConfigError, match=r"did you mean '.*worth.yaml'"):
        load_sweep(path.with_name("wort.yaml"))
    path.write_text("a: [")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_sweep(path)
    path.write_text("- a")
    with pytest.raises(ConfigError, match="expected a mapping, found list"):
        load_sweep(path)


def test_the_example_is_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    first_config(load_sweep(Path("examples/sweeps/cartpole.yaml"))).check()


def test_a_sweep_over_batch_sizes_at_a_fixed_ratio_is_told_that_trials_take_different_numbers_of_steps(
    tmp_path: Path,
) -> None:
    batch, ratio, budget = "agent.params.batch_size", "replay.samples_per_insert", "trainer.max_env_steps"
    fixed = {ratio: 8}
    warned = make_sweep(tmp_path, space={batch: [32, 64]}, fixed=fixed)
    assert f"{batch} is chosen, but {ratio} is 8 in all trials" in warn_of_unequal_steps(warned)
    for space, more in (
        ({batch: [32, 64]}, {budget: 1000}),
        ({batch: [32, 64], ratio: [8, 16]}, {}),
        ({"agent.params.lr": [0.1, 0.2]}, {}),
    ):
        assert warn_of_unequal_steps(make_sweep(tmp_path, space=space, fixed=fixed | more)) == ""
    assert warn_of_unequal_steps(make_sweep(tmp_path, space={batch: [32, 64]}, fixed={ratio: None})) == ""
