"""What the processes of a learner host share: mapped files, single words, doorbells, durable files."""
