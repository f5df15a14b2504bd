"""A certificate authority of one's own, and tokens: the files by which a learner and its actors know one another."""
