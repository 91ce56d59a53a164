"""What a model costs: multiply-adds, memory, time, and the bill for a whole training."""
