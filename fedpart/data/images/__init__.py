"""Images in folders and zip files, decoded when they are needed."""

from fedpart.data.images.files import LAYOUT, ImageSource, open_source
from fedpart.data.images.image_dataset import Colour, ImageDataset
from fedpart.data.images.listing import image_listing, listing_digest

__all__ = [
    "LAYOUT",
    "Colour",
    "ImageDataset",
    "ImageSource",
    "image_listing",
    "listing_digest",
    "open_source",
]
