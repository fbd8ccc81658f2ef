"""Benchmarks: what fedpart costs, beside what people do instead; they need a checkout."""
