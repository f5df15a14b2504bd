"""What happens when parts die, the network fails and messages are mutilated: small in the tests, long by ``make chaos``.

    python -m tests.chaos kills --kills 200 --seed 1

Each exercise prints its seed and how far it is, and leaves its figures in ``tests/chaos/results``; ``docs/reliability.md``
tabulates them.
"""
