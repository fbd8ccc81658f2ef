"""Splitting: subsets, chunks, held-out parts and shards of clients."""
