"""Many fine-tuning runs as one table: learning rates on a slice of train, then seeds on test."""
