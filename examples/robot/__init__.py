"""A whole example: robots with cameras, demonstrations, and a person who intervenes; see the README beside it."""
