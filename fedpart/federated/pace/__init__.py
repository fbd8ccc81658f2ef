"""Pace: how long simulated clients take, and whom a server waits for."""
