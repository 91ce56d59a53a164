"""Mechanisms that papers propose and no published weights need. Page: docs/variants.md."""
