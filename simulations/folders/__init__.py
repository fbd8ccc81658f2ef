"""Folders: what a run leaves on the disk, complete and readable at every moment."""
