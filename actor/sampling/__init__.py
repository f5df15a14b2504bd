"""The loop of acting: it steps the lanes with the agent's actions, and records the rows."""
