"""Data: readers, rotation, subsets, and the split among clients."""

from fedpart.data.cifar10 import load_cifar10
from fedpart.data.dataset import Dataset, Splits, check_labels
from fedpart.data.digits import load_digits
from fedpart.data.hold_out import divide
from fedpart.data.image_folder import load_image_folder
from fedpart.data.images import ImageDataset
from fedpart.data.input_selection import input_selection, load_input_selection
from fedpart.data.listing import image_listing, listing_digest
from fedpart.data.mnist import load_mnist
from fedpart.data.rotation import rotate, rotated, rotated_splits
from fedpart.data.shards import check_shards
from fedpart.data.sources import DATASETS, Loader, load_splits
from fedpart.data.splits import (
    SPLITS,
    Split,
    angle_bins,
    dirichlet_per_client,
    dirichlet_per_client_total,
    dirichlet_per_label,
    iid,
)
from fedpart.data.subset import random_places, random_subset
from fedpart.data.torchvision_sets import load_torchvision

__all__ = [
    "DATASETS",
    "SPLITS",
    "Dataset",
    "ImageDataset",
    "Loader",
    "Split",
    "Splits",
    "angle_bins",
    "check_labels",
    "check_shards",
    "dirichlet_per_client",
    "dirichlet_per_client_total",
    "dirichlet_per_label",
    "divide",
    "iid",
    "image_listing",
    "input_selection",
    "listing_digest",
    "load_cifar10",
    "load_digits",
    "load_image_folder",
    "load_input_selection",
    "load_mnist",
    "load_splits",
    "load_torchvision",
    "random_places",
    "random_subset",
    "rotate",
    "rotated",
    "rotated_splits",
]
