"""Processes of this host: children, signals, logging, clocks, and what all commands have in common."""
