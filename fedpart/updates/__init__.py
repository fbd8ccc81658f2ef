"""Updates: what clients send back, why it is refused, and how it is summed."""
