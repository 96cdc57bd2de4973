"""A run, computed once: which steps count, and where their time went."""
