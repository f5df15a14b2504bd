"""Training with several ranks: learner hosts that torchrun starts, and that take each opt step together."""
