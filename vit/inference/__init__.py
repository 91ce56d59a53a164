"""A trained model with its class names and preprocessing, ready for pictures."""
