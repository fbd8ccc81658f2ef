"""Who gets which examples: subsets, chunks, held-out parts, and the shards of clients."""
