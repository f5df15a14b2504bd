"""Rewards from a classifier of pictures, which has learnt from a person's labels when a task is done."""
