"""What can be behind a gap: one file a kind, each a pure function of the compared runs."""
