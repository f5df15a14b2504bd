"""Agents that come with the system, one file each, and their networks, losses, policies and exploration.

They import the machinery that they share from ``network_agent``. Begin reading with ``dqn``.
"""
