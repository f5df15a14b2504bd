"""crossborder's commands; the rest is in ``learner``, ``actor`` and ``common``."""
