"""Where figures go: record files, experiment trackers, Prometheus, the terminal."""
