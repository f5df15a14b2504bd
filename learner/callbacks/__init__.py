"""Callbacks watch a run at the learner, and may end it; ``common.interfaces:Callback`` is their interface."""
