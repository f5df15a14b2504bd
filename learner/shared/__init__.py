"""Shared by the processes of a learner host: mapped files, single words, doorbells, durable files."""
