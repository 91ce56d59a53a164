"""Sets of classes, and images of none of them. Page: docs/trust.md."""
