"""Parts that people bring, named ``module:attr`` in the configuration."""
