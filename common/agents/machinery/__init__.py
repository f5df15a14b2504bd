"""What makes agents fast and lets them go on; but for ``gradient_step`` an agent's file can be understood without it.

``gradient_step`` has what agents do with each batch. ``update``, ``capturing`` and ``cuda_graph`` compute updates and
actions without Python's overhead, ``optimizers`` makes optimisers, and ``lane_states`` keeps what belongs to a lane.
"""
