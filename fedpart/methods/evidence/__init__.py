"""Evidence: other estimates of the log marginal likelihood, to compare L_ML with."""
