"""A look at what is there: would this host bear a learner, what does a replay hold; and its copy."""
