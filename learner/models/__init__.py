"""Newest model out: the slots through which the trainer gives models to ingest."""
