"""What makes agents fast and lets them go on: an agent's file can be understood without it.

``update`` and ``capturing`` make updates and actions fast, ``batches`` draws items, ``optimization`` steps optimisers,
and ``lane_states`` keeps what belongs to a lane.
"""
