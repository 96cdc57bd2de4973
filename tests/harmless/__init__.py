"""Held-out tests of one promise: what is recorded behaves as it does when nobody looks."""
