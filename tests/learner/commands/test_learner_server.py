from __future__ import annotations

import pytest

from common.config.run_config import load_config
from learner.commands.learner_server import COMMANDS, main, parser
from tests.conftest import ROOT


def test_options_are_values_of_the_configuration_in_the_order_of_the_command_line() -> None:
    words = ["--set", "seed=3", "--listen", "0.0.0.0:50051", "--insecure", "--token-file", "a.token"]
    arguments = parser().parse_args(["--config", "a.yaml", *words, "--run-dir", "run"])
    assert arguments.overrides == [
        "seed=3",
        'server.listen="0.0.0.0:50051"',
        "server.insecure=true",
        'server.actor_token_file="a.token"',
        'run_dir="run"',
    ]
    config = load_config(ROOT / "configs" / "cartpole.yaml", arguments.overrides)
    assert (config.seed, config.server.listen, config.server.insecure) == (3, "0.0.0.0:50051", True)


def test_no_actor_runs_on_the_learners_host_unless_it_is_asked_for() -> None:
    assert parser().parse_args(["--config", "a.yaml"]).local_actors == 0
    assert parser().parse_args(["--config", "a.yaml", "--local-actors", "2"]).local_actors == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_for_a_running_learner_has_a_help_of_its_own(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert not ended.value.code
    assert capsys.readouterr().out.startswith(f"usage: learner-server {command} ")
