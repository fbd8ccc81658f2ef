"""Parameters: the numbers of a module as one vector, and which of C partitions each belongs to."""
