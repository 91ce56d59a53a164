"""What frozen features are worth, and how a model fares on ImageNet's other test sets."""
