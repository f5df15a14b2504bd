"""A relay: a process that stands between a learner and actors that are near each other."""
