"""Readings next to the training loop: processes, hosts, devices. One file per collector."""
