"""Data: data sets by name, images in files, rotation, and who gets which examples."""

from fedpart.data.dataset import Dataset, Splits, check_labels
from fedpart.data.images import ImageDataset, image_listing, listing_digest
from fedpart.data.loading import DATASETS, Loader, load_splits
from fedpart.data.rotation import rotate, rotated, rotated_splits
from fedpart.data.sets.cifar10 import load_cifar10
from fedpart.data.sets.digits import load_digits
from fedpart.data.sets.image_folder import load_image_folder
from fedpart.data.sets.input_selection import input_selection, load_input_selection
from fedpart.data.sets.mnist import load_mnist
from fedpart.data.sets.torchvision_sets import load_torchvision
from fedpart.data.splitting import (
    SPLITS,
    Split,
    angle_bins,
    check_shards,
    dirichlet_per_client,
    dirichlet_per_client_total,
    dirichlet_per_label,
    divide,
    iid,
    random_places,
    random_subset,
)

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
