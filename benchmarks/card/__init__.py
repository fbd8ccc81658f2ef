"""Card: what rounds cost on a card, in one table; it needs torch, numpy and fedpart alone."""
