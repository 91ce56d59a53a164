"""Mechanisms that no published weights need: one table per kind, one file per family."""
