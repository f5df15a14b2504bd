"""The learner host: trainer, ingest, replay, evaluation, records."""
