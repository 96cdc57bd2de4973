"""Predictions of changed jobs from recorded runs, and the record of how they came out."""
