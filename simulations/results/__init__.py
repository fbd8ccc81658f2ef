"""Results: numbers read from run folders, and their tables."""
