"""Search: runs with other values of some keys, as people tune by hand or with Optuna, and what that costs."""
