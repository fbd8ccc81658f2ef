"""Costs: what a federation costs in memory."""
