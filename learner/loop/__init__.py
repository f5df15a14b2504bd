"""The spine of the learner: wiring, the training loop, and its three ways to train."""
