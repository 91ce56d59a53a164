"""Parameter groups, and Muon, which torch has for plain matrices alone."""
