"""Pages of ``docs/`` that are generated from the code: ``python -m pages``, or ``make pages``."""
