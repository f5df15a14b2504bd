"""A look at what is there: would this host bear a learner, does one serve, what does a replay hold; and its copy."""
