"""Loads and checks the parts that the configuration names as ``module:attr``."""
