"""Building: from a configuration to data, task and everything that a run needs."""
