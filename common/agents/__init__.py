"""Agents that come with the system, one file each, and their networks, losses, policies and exploration.

Begin reading with ``dqn``; ``network_agent`` has what all agents share.
"""
