"""Training without labels: masked patches, MAE and AIM. Page: docs/pretraining.md."""
