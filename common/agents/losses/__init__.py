"""Losses and targets as pure functions, each with its equation or its source."""
