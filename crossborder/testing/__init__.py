"""Checks for your own parts: a test needs a few lines, and its failure says how to correct the part.

    def test_my_agent_fits() -> None:
        env = MyEnv()
        check_env(env)
        check_agent(MyAgent, env)

A check that fails raises AssertionError, which names what does not fit and what to do. Other exceptions of the part may
come through. No check uses a network.
"""

from crossborder.testing.agent_checks import check_agent
from crossborder.testing.env_checks import check_env
from crossborder.testing.learner_checks import check_callback, check_evaluator, check_recorder, check_replay_buffer
from crossborder.testing.learning_checks import check_learning
from crossborder.testing.play import ItemMemory, Policy, items_of, play
from crossborder.testing.processor_checks import check_row_map, check_step_processor
from crossborder.testing.row_memory import RowMemory, rows_of, transitions, transitions_of
from crossborder.testing.view_checks import check_view

__all__ = [
    "ItemMemory",
    "Policy",
    "RowMemory",
    "check_agent",
    "check_callback",
    "check_env",
    "check_evaluator",
    "check_learning",
    "check_recorder",
    "check_replay_buffer",
    "check_row_map",
    "check_step_processor",
    "check_view",
    "items_of",
    "play",
    "rows_of",
    "transitions",
    "transitions_of",
]
