"""Environments and wrappers that come with the system, each by its name in ``env.target`` or ``env.wrappers``."""
