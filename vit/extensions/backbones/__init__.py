"""Our models for packages that build on timm: its contract of a backbone, and its registry;
and the preprocessing of a model as a callable.

Adds vit.as_timm, vit.register_with_timm and vit.transforms. Page: docs/backbone.md.
"""
