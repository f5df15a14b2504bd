"""A trial of a GPU host in parts of a few minutes: ``python -m benchmarks.gpu_host``."""
