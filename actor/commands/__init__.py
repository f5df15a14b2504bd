"""The commands of an actor host, one module each."""
