"""What `profkit run` puts into the processes that it starts: this folder stands first on their `PYTHONPATH`."""
