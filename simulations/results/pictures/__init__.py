"""Pictures: what is drawn of runs."""
