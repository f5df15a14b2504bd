"""Learning curves of several runs: read, brought together with their uncertainty, drawn."""
