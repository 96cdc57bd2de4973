"""Runs in other tools' formats, one file a format."""
