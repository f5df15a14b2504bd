"""Makes lanes from an environment of any kind: copies of it that step together."""
