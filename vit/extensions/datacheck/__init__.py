"""Bad files, copies, leaks and labels in doubt of a data set. Page: docs/data_check.md."""
