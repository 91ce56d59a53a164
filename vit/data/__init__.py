"""Images: files and data sets are found, opened, changed and fed as normalised batches."""
