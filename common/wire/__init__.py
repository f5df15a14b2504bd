"""The wire: what travels between actors and the learner, as bytes and as gRPC messages, and whom each end trusts."""
