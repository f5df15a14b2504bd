"""The commands of a learner host, one module each, and what they show."""
