"""The actor's end of the wire: join, push items, fetch models. The only part of the actor that knows gRPC."""
