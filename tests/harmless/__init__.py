"""Held-out tests of one promise: a recorded job behaves like the same job without profkit."""
