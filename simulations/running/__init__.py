"""Running: one experiment from its configuration to its summary."""
