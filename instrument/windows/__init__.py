"""Capture kernels in windows of steps."""
