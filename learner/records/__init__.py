"""Brings figures to record files, experiment trackers, Prometheus and the terminal."""
