"""Relays stand before the scripted learner of the tests of clients."""

from tests.actor.client.conftest import serve

__all__ = ["serve"]
