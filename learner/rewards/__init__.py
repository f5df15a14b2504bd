"""Training of reward classifiers on labelled pictures."""
