"""Who gets which examples: subsets, chunks, held-out parts, and the shards of clients."""

from fedpart.data.splitting.hold_out import HoldOut, divide
from fedpart.data.splitting.recipes import (
    SPLITS,
    Split,
    angle_bins,
    dirichlet_per_client,
    dirichlet_per_client_total,
    dirichlet_per_label,
    iid,
)
from fedpart.data.splitting.shards import check_shards
from fedpart.data.splitting.subset import random_places, random_subset

__all__ = [
    "SPLITS",
    "HoldOut",
    "Split",
    "angle_bins",
    "check_shards",
    "dirichlet_per_client",
    "dirichlet_per_client_total",
    "dirichlet_per_label",
    "divide",
    "iid",
    "random_places",
    "random_subset",
]
