"""Replay of hybrid-parallel steps with other durations of some operations."""
