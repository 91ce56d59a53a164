"""Cost of models: multiply-adds, memory, time, and the price of a whole training."""
