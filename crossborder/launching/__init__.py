"""A learner and its actors on several hosts, started and ended together by ssh."""
