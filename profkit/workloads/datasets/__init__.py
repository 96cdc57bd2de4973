"""Readers and generators of the data sets."""
