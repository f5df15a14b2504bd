"""The actor's end of the wire: joins, pushes items, fetches models. No other module of the actor knows gRPC."""
