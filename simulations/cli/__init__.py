"""Command line: what fedpart's commands take (experiments, deployment) and do (commands, federations)."""
