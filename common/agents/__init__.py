"""Agents that come with the system, one file each, and their networks, losses, policies and exploration.

``network_agent`` is the door to the machinery that all of them share; begin reading with ``dqn``.
"""
