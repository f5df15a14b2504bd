"""Newest model out: the slots through which the trainer hands models to ingest."""
