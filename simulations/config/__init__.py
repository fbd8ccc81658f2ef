"""Config: what a YAML file may say, and what is wrong with it."""
