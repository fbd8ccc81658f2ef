"""The report: one page in HTML about a comparison, or a run, that needs nothing else to be read."""
