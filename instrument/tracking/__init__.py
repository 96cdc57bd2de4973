"""Follows a training loop by the reports of hooks, and makes steps and phases of them."""
