"""The trainer publishes models: into slots, from which ingest and local actors copy them."""
