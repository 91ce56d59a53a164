"""Low-rank updates of a pretrained model (LoRA), distillation of a teacher, and heads with classes
added.

Adds --model.lora, or model.adaptation: vit.LoRA, and model.loss.teacher: vit.Distillation.
Page: docs/finetuning.md.
"""
