"""Scoring the policy, beside training or between its steps; films and exported policies."""
