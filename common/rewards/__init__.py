"""Rewards by a classifier of pictures, which a person's labels have taught what success looks like."""
