"""The causes that can be behind a gap: one module per kind, each a pure function."""
