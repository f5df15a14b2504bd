"""Benchmarks, one command each. Beside each figure is a floor, the least possible cost, of the same run."""
