"""The commands of a learner host, one module each; their shared options; the admin's client and its table."""
