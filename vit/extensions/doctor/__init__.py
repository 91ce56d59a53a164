"""A check of the installation. Page: docs/runs.md."""
