"""An acting service: programs that have observations and no policy get their actions over a network."""
