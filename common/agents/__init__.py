"""Agents that come with the system."""
