"""Figures, tables and pages about a run."""
