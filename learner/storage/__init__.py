"""The run directory: saved policies, checkpoints, resuming, backups."""
