"""What runs in either release: this one, and the older one beside which it is measured.

The directory itself is put on PYTHONPATH, so that a configuration of either release can name ``recorded:CartPole``.
Modules here import only what both releases have.
"""
