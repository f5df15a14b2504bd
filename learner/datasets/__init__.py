"""Recorded experience that a run learns from: earlier replays and datasets of episodes.

``opening.py`` finds the kind of a source by its name; each kind is a module with a class that is a ``Dataset``;
``loading.py`` copies the rows of any of them into a run's own replay.
"""
