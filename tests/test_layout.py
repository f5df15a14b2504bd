"""The tests mirror the source: ``learner/replay/reader.py`` has ``tests/learner/replay/test_reader.py``."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import ROOT, SLOW_PLACES

ROOMS = ("actor", "common", "crossborder", "learner")
GENERATED = Path("common/wire/pb")

# Modules without a test file of their name, and where their behaviour is tested instead.
TESTED_ELSEWHERE: dict[str, str] = {
    "actor/acting.py": "actor/test_worker.py",
    "actor/child_main.py": "actor/test_worker.py",
    "actor/remote_config.py": "actor/test_remote_worker.py",
    "common/agents/agent_settings.py": "common/agents/test_network_agent.py",
    "common/agents/averaging.py": "learner/ranks/test_averaging.py",
    "common/agents/configured_agent.py": "common/agents/test_network_agent.py",
    "crossborder/testing/acting_checks.py": "crossborder/testing/test_agent_checks.py",
    "crossborder/serving/connection.py": "crossborder/serving/test_acting_service.py",
    "crossborder/serving/figures.py": "crossborder/serving/test_serving_metrics.py",
    "crossborder/serving/client_steps.py": "crossborder/serving/test_acting_service.py",
    "crossborder/serving/saved_policies.py": "crossborder/serving/test_policy_server.py",
    "crossborder/serving/served_policy.py": "crossborder/serving/test_sessions.py",
    "crossborder/serving/session.py": "crossborder/serving/test_acting_service.py",
    "crossborder/serving/strangers.py": "crossborder/serving/test_websocket_door.py",
    "crossborder/serving/websocket_messages.py": "crossborder/serving/test_websocket_door.py",
    "learner/__main__.py": "e2e/test_ranks.py",
    "learner/replay/view.py": "crossborder/testing/test_view_checks.py",
    "learner/storage/mirror_child.py": "learner/storage/test_mirror_process.py",
    "learner/views/columns.py": "learner/views/test_transitions.py",
    "learner/views/positions.py": "learner/views/test_sequences.py",
}

# Test files of no single module, and their subject.
ACROSS_MODULES: dict[str, str] = {
    "actor/sampling/test_seats.py": "rows of environments with several agents",
    "actor/client/test_hostile_learner.py": "what a learner may send that an actor must survive",
    "actor/client/test_other_learners.py": "an actor whose run is replaced by another, or whose first model comes late",
    "common/agents/networks/test_allowed.py": "what holds for all agents where actions are not allowed",
    "common/agents/test_recurrent_example.py": "the agent with a memory among the examples",
    "common/agents/test_q_agent.py": "what holds for all agents of action values",
    "common/agents/test_shared_encoders.py": "what holds for SAC and TD3 with shared and with frozen encoders",
    "common/agents/test_structured.py": "what holds for all agents whose observations are structured",
    "common/agents/test_structured_actions.py": "what holds for the agents that act in Dict and Tuple spaces",
    "learner/ingest/test_fleet_metrics.py": "metrics of all actors together",
    "learner/test_poison.py": "items at which training diverges",
    "learner/ranks/test_averaging.py": "what two ranks average, in processes of their own",
    "learner/storage/test_saving.py": "readers of policies and checkpoints beside a learner that saves others",
    "learner/test_resume.py": "a run in turns that goes on",
}


def modules() -> set[str]:
    """Every hand-written module of the rooms but packages, by its path."""
    paths = (path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    return {str(path) for path in paths if path.name != "__init__.py" and GENERATED not in path.parents}


def files_of_tests() -> set[str]:
    """Every test file of the rooms, by its path in ``tests``."""
    paths = (path for room in ROOMS for path in (ROOT / "tests" / room).rglob("test_*.py"))
    return {str(path.relative_to(ROOT / "tests")) for path in paths}


def mirror(module: str) -> str:
    """The test file that bears the name of a module."""
    path = Path(module)
    return str(path.with_name(f"test_{path.name}"))


def test_each_module_has_a_test_file_of_its_name_or_a_line_that_says_where_it_is_tested() -> None:
    untested = {module for module in modules() if mirror(module) not in files_of_tests()}
    assert untested - TESTED_ELSEWHERE.keys() == set()
    assert TESTED_ELSEWHERE.keys() - untested == set(), "these lines have no reason any more: delete them"


def test_the_file_named_for_a_module_without_one_exists() -> None:
    assert {file for file in TESTED_ELSEWHERE.values() if not (ROOT / "tests" / file).is_file()} == set()


def test_each_test_file_of_a_room_has_a_module_of_its_name_or_a_line_that_says_its_subject() -> None:
    across = files_of_tests() - {mirror(module) for module in modules()}
    assert across - ACROSS_MODULES.keys() == set()
    assert ACROSS_MODULES.keys() - across == set(), "these lines have no reason any more: delete them"


def test_the_places_of_slow_tests_exist() -> None:
    assert {place for place in SLOW_PLACES if not (ROOT / "tests" / place).exists()} == set()
