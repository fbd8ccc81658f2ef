"""A federation of real processes: keys, processes, the operator's commands."""
