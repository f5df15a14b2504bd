"""The commands of an actor host, one module each; ``doctor`` is ``actor-worker --check``."""
