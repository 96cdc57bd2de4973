"""Reads training logs: one grammar per tool, one form of the content for all of them."""
