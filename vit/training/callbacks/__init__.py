"""Callbacks of a run: its guards, its progress and its end, and those that recipes name."""
