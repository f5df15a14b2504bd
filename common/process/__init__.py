"""Processes of this host: children, signals, logging, clocks, and the code that all commands share."""
