"""The ingest process: the gRPC server of the learner host. It writes the replay and never imports torch."""
