"""Recorded experience that a run learns from: earlier replays and Minari datasets."""
