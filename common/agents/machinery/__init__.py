"""The machinery behind ``common.agents.network_agent``; other modules import it only from there.

An agent's file can be understood without it. ``update``, ``inference`` and ``capturing`` make updates and actions
fast, ``batches`` draws items, and ``optimization`` steps optimisers.
"""
