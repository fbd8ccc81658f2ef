"""Command line: what fedpart's commands take, do and say."""
