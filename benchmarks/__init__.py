"""Scripts that measure the package; README.md names the claim that each holds."""
