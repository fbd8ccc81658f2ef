"""Flower: the strategy and the client app for Flower, and all that is said between them."""
