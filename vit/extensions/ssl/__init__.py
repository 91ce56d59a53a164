"""Training without labels by a teacher that averages its student: DINOv2's objectives.

Adds the task dino: `vit fit -c pretrain/dinov2_continue --data.root photos/`, with the options
`--model.heads`, `.teacher`, `.masks`, `.yardstick`, ... Page: docs/pretraining.md.
"""
