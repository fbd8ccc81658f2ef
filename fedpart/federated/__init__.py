"""Federated: what server and clients agree on, and the state of a run on the server."""
