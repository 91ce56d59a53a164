"""What a run or a model did, as figures, tables and pages."""
