"""Evaluations of the policy: in the trainer, in a process beside it, or by an actor."""
