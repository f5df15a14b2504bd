"""The tests mirror the source: ``learner/replay/reader.py`` has ``tests/learner/replay/test_reader.py``."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import ROOT, SLOW_PLACES

ROOMS = ("actor", "common", "learner")
GENERATED = Path("common/wire/pb")

# Modules without a test file of their name, and where their behaviour is tested instead.
TESTED_ELSEWHERE: dict[str, str] = {
    "actor/client/handshake.py": "actor/client/test_connector.py",
    "actor/client/health.py": "actor/commands/test_crossborder_health.py",
    "actor/client/probe.py": "actor/commands/test_doctor.py",
    "actor/commands/actor_worker.py": "test_commands.py",
    "actor/manager.py": "e2e/test_by_hand.py",
    "actor/tape.py": "actor/test_resumable.py",
    "actor/worker.py": "e2e/test_actor_life.py",
    "common/agents/advantage_weighted.py": "common/agents/test_iql.py",
    "common/agents/objects.py": "common/agents/test_network_agent.py",
    "common/agents/q_agent.py": "common/agents/test_dqn.py",
    "common/config/server_config.py": "common/config/test_run_config.py",
    "common/interfaces.py": "test_conformance.py",
    "common/plugins/part_config.py": "common/config/test_run_config.py",
    "common/testing/agents.py": "common/test_testing_agents.py",
    "common/testing/envs.py": "common/test_testing.py",
    "common/testing/learning.py": "common/test_testing.py",
    "common/testing/play.py": "common/test_testing.py",
    "common/testing/processors.py": "common/test_testing.py",
    "common/values.py": "learner/replay/test_value_rules.py",
    "common/wire/channel.py": "common/wire/test_trust.py",
    "common/wire/tls.py": "security/test_tls.py",
    "learner/commands/admin_client.py": "security/test_operators.py",
    "learner/commands/authority.py": "learner/commands/test_crossborder_certs.py",
    "learner/commands/learner_server.py": "test_commands.py",
    "learner/commands/offline_train.py": "learner/storage/test_origin.py",
    "learner/commands/saved_policy.py": "learner/commands/test_policy_eval.py",
    "learner/commands/server_ratio.py": "learner/commands/test_server_status.py",
    "learner/commands/sync_train.py": "learner/storage/test_origin.py",
    "learner/commands/training_command.py": "learner/test_resume.py",
    "learner/evaluation/eval_env.py": "learner/evaluation/test_evaluator.py",
    "learner/evaluation/evaluator_child.py": "learner/evaluation/test_evaluator_process.py",
    "learner/ingest/__main__.py": "learner/ingest/test_service.py",
    "learner/ingest/admin.py": "security/test_operators.py",
    "learner/ingest/caller.py": "learner/ingest/test_limits.py",
    "learner/ingest/core.py": "learner/ingest/test_service.py",
    "learner/ingest/gate.py": "security/test_tokens.py",
    "learner/ingest/ingest_metrics.py": "learner/records/test_families.py",
    "learner/ingest/ingest_process.py": "learner/ingest/test_service.py",
    "learner/ingest/promise.py": "learner/ingest/test_service.py",
    "learner/ingest/refusal.py": "learner/ingest/test_service.py",
    "learner/ingest/server_options.py": "common/wire/test_rpc.py",
    "learner/loop/acting_in_turns.py": "learner/loop/test_in_turns.py",
    "learner/loop/learner_parts.py": "learner/loop/test_run.py",
    "learner/loop/server.py": "e2e/test_counting.py",
    "learner/loop/trainer_metrics.py": "learner/records/test_families.py",
    "learner/models/publisher.py": "learner/models/test_staging.py",
    "learner/records/status.py": "learner/records/test_progress.py",
    "learner/replay/inspection.py": "learner/commands/test_replay_inspect.py",
    "learner/replay/layout.py": "learner/replay/test_memory.py",
    "learner/replay/local_sink.py": "learner/loop/test_in_turns.py",
    "learner/replay/reader.py": "learner/replay/test_memory.py",
    "learner/replay/shared_buffer.py": "learner/replay/test_uniform.py",
    "learner/replay/suspects.py": "learner/test_poison.py",
    "learner/replay/upgrade.py": "learner/replay/test_batch_log.py",
    "learner/replay/watermark.py": "learner/replay/test_recovery.py",
    "learner/shared/bell.py": "learner/shared/test_control.py",
    "learner/shared/durable.py": "learner/storage/test_rundir.py",
    "learner/shared/mapped.py": "learner/shared/test_control.py",
    "learner/storage/moment.py": "learner/storage/test_training_state.py",
}

# Test files of no single module, and their subject.
ACROSS_MODULES: dict[str, str] = {
    "actor/client/test_hostile_learner.py": "what a learner may send that an actor must survive",
    "common/agents/test_train_mode.py": "the modes of every agent",
    "common/test_testing.py": "the conformance kit as a whole",
    "common/test_testing_agents.py": "the conformance kit on agents that have faults",
    "learner/ingest/test_deltas.py": "differences between models, over the wire",
    "learner/ingest/test_frames.py": "items with frames, over the wire",
    "learner/replay/test_drawn.py": "what both replay buffers draw",
    "learner/replay/test_excluded.py": "items that no buffer draws",
    "learner/replay/test_killed.py": "a writer that is killed",
    "learner/replay/test_rollback.py": "a replay that goes back to a checkpoint",
    "learner/test_poison.py": "items at which training diverges",
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
