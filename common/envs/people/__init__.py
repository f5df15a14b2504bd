"""People beside an environment: they take over from the agent, show it how, and say what succeeded."""
