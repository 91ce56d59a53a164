"""The life of a run: its options, directory, training, evaluation and results."""
