"""The wire: rows and models as bytes and as gRPC messages, the channel, and the credentials of both ends."""
