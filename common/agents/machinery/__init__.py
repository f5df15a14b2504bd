"""The machinery behind ``common.agents.network_agent``, which is the only door to it.

An agent reads top to bottom without the machinery. ``tracing``, ``update`` and ``inference`` make updates and actions
fast, ``named_tensors`` turns networks and optimisers into named tensors and back, ``batches`` draws items, and
``optimization`` steps optimisers.
"""
