"""Training without labels: masked patches, MAE and AIM.

Adds the tasks masked_patches, mae and autoregressive: `vit fit -c pretrain/RECIPE`, with the
options `--model.target`, `.fraction`; `.mask_ratio`, `.decoder_width`, ...; `.prefix`,
`.head_width`, ...; and the examples on the report of such a run. Page: docs/pretraining.md.
"""
