"""The configuration of a run: one YAML file, checked before anything is built."""
