"""Ray: clients on Ray actors, on one machine or a cluster."""
