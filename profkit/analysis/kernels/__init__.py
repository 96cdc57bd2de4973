"""Kernels: categories, time per step, views."""
