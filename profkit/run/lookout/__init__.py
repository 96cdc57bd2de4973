"""Watches from inside each rank if the job stands still, and leaves a status file."""
