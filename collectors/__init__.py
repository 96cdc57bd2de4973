"""Readings beside the training loop: processes, hosts, devices. One file a collector."""
