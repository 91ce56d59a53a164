"""The report of a run, and its figures. Page: docs/runs.md."""
