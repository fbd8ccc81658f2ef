"""Images in folders and zip files, decoded when they are needed."""
