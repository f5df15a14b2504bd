"""What actors and the learner must agree on: data, interfaces, wire, configuration, agents."""
