"""Report of a run and its figures: report.html, curves.png, confusion.png, worst.png and others.

Adds the finisher `report`, `vit report RUN`, and the table of classes of `vit test`.
Page: docs/runs.md.
"""
