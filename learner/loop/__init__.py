"""The spine of the learner: wiring, the learner loop, and the three ways to train."""
