"""Low-rank updates (LoRA), and distillation. Page: docs/finetuning.md."""
