"""Training on several devices: weights in shards (FSDP2), and the batch that fits.

Adds --trainer.strategy fsdp2, its checkpoints, and --data.batch_size auto. Page: docs/scaling.md.
"""
