"""Clients: chunk, cap and architecture of every client number."""
