"""What actors and the learner must agree on: data, seams, wire, configuration, agents."""
