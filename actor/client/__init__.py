"""The actor's end of the wire: joins, pushes rows, fetches models. No other module of the actor knows gRPC."""
