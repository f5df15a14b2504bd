"""Agents that come with the system, one file each, and what they are made of.

Begin reading with ``dqn``; ``configured_agent`` has what all agents share. The losses of SAC and its kin are in
``entropy``, exploration is in ``exploring`` and ``noise``, and ``networks`` has networks and policies. ``averaging``,
``device`` and ``products`` are about computing: over ranks, on which device, and by which library.
"""
