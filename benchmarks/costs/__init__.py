"""Costs: what single parts of a round cost."""
