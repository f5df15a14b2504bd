"""Where commands begin, and what a run does not need: each room here imports the core, and the core imports none.

certificates    an authority of one's own, tokens          launching    a learner and its actors on several hosts by ssh
people          devices, taking over, demonstrations       rewards      rewards by a classifier of pictures
sweeps          many runs of one configuration             curves       learning curves of several runs
"""
