"""FSDP2, sharded checkpoints, and the batch that fits. Page: docs/scaling.md."""
