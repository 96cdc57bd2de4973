"""Turns the views that `profkit.analysis` builds into text and JSON."""
