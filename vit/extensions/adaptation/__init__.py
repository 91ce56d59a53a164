"""Low-rank updates of a pretrained model (LoRA), and distillation of a teacher.

Adds --model.lora, or model.adaptation: vit.LoRA, and model.loss.teacher: vit.Distillation.
Page: docs/finetuning.md.
"""
