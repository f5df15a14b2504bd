"""The machinery behind ``common.agents.network_agent``; other modules import it only from there.

An agent's file can be understood without it. ``tracing``, ``update`` and ``inference`` make updates and actions fast,
``named_tensors`` turns networks and optimisers into named tensors and back, ``batches`` draws items, and
``optimization`` steps optimisers.
"""
