"""Our models for packages that build on timm: its contract of a backbone, and its registry.

Adds vit.as_timm and vit.register_with_timm. Page: docs/backbone.md.
"""
