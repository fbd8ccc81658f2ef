"""Terminal: what a run shows while it is under way."""
