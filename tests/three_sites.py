"""Three sites that have a table each: the run of their rows, by statistics that they share."""

SITES = ("east", "north", "south")
CONFIG = {
    "data": "table",
    "data_dir": "/proc/self/cwd/rows.csv",  # of each process its own
    "data_options": {
        "target": "ill",
        "client": "site",
        "standardise": True,
        "categorical": "auto",
        "missing": "mean",
        "statistics": "federated",
    },
    "clients": 3,
    "rounds": 2,
    "chunks": [0.6, 0.4],
    "samples": 1,
    "model": "mlp",
    "model_options": {"hidden": [4]},
    "hyperparameters": {"dropout": {}},
}
