"""Low-rank updates (LoRA), distillation, and heads with classes added. Page: docs/finetuning.md."""
