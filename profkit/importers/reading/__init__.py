"""Readers that several importers share."""
