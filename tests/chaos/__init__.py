"""Parts die, the network fails, messages are mutilated: a little in the tests, for long by ``make chaos``.

    python -m tests.chaos kills --kills 200 --seed 1

Each exercise prints its seed and how far it is, and leaves its figures in ``tests/chaos/results``, from which
``docs/reliability.md`` has its tables.
"""
