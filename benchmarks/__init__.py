"""Figures, one command each; every one is a ratio to a floor measured in the same run."""
