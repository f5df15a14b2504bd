"""Rewards by a classifier of pictures: its training, its file, and the wrapper that rewards by it."""
