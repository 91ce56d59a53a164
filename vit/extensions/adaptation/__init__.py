"""Low-rank updates of a pretrained model (LoRA), distillation of a teacher, and heads with classes
added, or that start from names.

Adds --model.lora, or model.adaptation: vit.LoRA, model.loss.teacher: vit.Distillation, and the
callback vit.NamedHead. Pages: docs/finetuning.md, docs/names.md.
"""
