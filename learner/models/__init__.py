"""The slots through which the trainer hands models to ingest."""
