"""People beside an environment: they take over from the agent, demonstrate the task, and label success."""
