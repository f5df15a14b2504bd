"""An actor: samples an environment with the newest policy and hands its items to the learner."""
