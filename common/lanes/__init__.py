"""From an environment to lanes: copies of it that are stepped together, whatever kind of environment it is."""
