"""Replay memory shared by the trainer and ingest, and how batches are drawn from it."""
