"""From a file to a normalised batch."""
