"""The run directory: saved models, states of training, resuming, backups."""
