"""The process that writes the rows of all ranks of a host, so that no rank opens a file."""
