"""A model that answers in a browser and over HTTP: `vit serve` (docs/serve.md)."""
