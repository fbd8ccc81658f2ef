"""Stock Flower: a plain app as in Flower's PyTorch quickstart, for Flower's own simulation on Ray."""
